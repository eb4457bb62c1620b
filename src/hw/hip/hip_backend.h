/* SPDX-License-Identifier: MIT */
/* hip_backend.h - the row of the `hip` backend in the list of backends. */
#ifndef MB_HW_HIP_BACKEND_H
#define MB_HW_HIP_BACKEND_H

#include "hw/hw.h"

/* Loads libamdhip64 if it is there and asks it for devices; allocates nothing on them. */
void mb__hip_describe(int ordinal, struct mb_backend_info *out);
enum mb_err mb__hip_open(const struct mb_hw_config *config, struct mb_hw_dev **out);

#endif
