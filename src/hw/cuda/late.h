/* SPDX-License-Identifier: MIT */
/*
 * late.h - finds libcuda's objects when libcuda was initialised before anyone observed it.
 *
 * A mapping that libcuda makes for us shows its client and files. The resource manager tells of any
 * handle of a client which class it has and whose child it is, so the objects are found by asking
 * for the handles around the one that was seen. Only questions are asked.
 */
#ifndef MB_HW_CUDA_LATE_H
#define MB_HW_CUDA_LATE_H

#include "hw/cuda/observe.h"
#include "hw/nvrm/client.h"

/* ERRORS MB_ERR_NOT_SUPPORTED with what could not be found; *out is then untouched. */
enum mb_err mb__cuda_find_late(struct nvrm_client *rm, const uint8_t uuid[NVRM_UUID_BYTES],
                               const struct mb_cuda_map_event *event, struct mb_cuda_seen *out);

/* The pure part: classes[i] and parents[i] of handle first + i, class 0 where there is none;
 * `device` is the parent of the memory that was seen. */
enum mb_err mb__cuda_pick_late(nvrm_handle first, const uint32_t *classes,
                               const nvrm_handle *parents, unsigned count, uint32_t channel_class,
                               nvrm_handle device, struct mb_cuda_seen *out);

#endif
