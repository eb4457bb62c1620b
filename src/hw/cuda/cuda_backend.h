/* SPDX-License-Identifier: MIT */
/* cuda_backend.h - the row of the `cuda` backend in the list of backends. */
#ifndef MB_HW_CUDA_BACKEND_H
#define MB_HW_CUDA_BACKEND_H

#include "hw/hw.h"

/* Reads a few files; neither initialises libcuda nor opens a device. */
void mb__cuda_describe(int ordinal, struct mb_backend_info *out);
/* Index, among `count` GPUs with these numbers ("GPU-..."), of the `ordinal`-th one that
 * CUDA_VISIBLE_DEVICES (`list`; NULL: not set) leaves; -1: there is none. Pure. */
int mb__cuda_visible(const char *list, const char *const *uuids, int count, int ordinal);
enum mb_err mb__cuda_open(const struct mb_hw_config *config, struct mb_hw_dev **out);

#endif
