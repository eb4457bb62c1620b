/* SPDX-License-Identifier: MIT */
/* runtime_sim.h - the software GPU below a public device, for tests that talk to it directly. */
#ifndef MB_TESTS_RUNTIME_SIM_H
#define MB_TESTS_RUNTIME_SIM_H

#include "hw/fault.h"
#include "runtime/runtime.h"

static inline __attribute__((unused)) struct mb_hw_dev *sim_of(mb_device dev)
{
#ifdef MB_FAULT_INJECTION
    return mb__hw_fault_inner(dev->hw);
#else
    return dev->hw;
#endif
}

#endif
