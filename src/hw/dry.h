/* SPDX-License-Identifier: MIT */
/*
 * dry.h - a device that takes batches and executes none: for measuring what the layers above cost.
 *
 * Nothing that such a device was told to map is mapped, so no device work may be given to it.
 */
#ifndef MB_HW_DRY_H
#define MB_HW_DRY_H

#include "hw/hw.h"

/* From now on batches of `dev` count as done when they are submitted. All devices of a process that
 * are made dry are of one backend. */
void mb__hw_dry(struct mb_hw_dev *dev);

#endif
