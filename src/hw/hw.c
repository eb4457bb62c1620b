/* SPDX-License-Identifier: MIT */
/*
 * hw.c - the backends of this build, in order of preference. A vendor's backend joins by a header
 * next to its sources that declares its two functions; the software GPU is always last.
 */
#include "hw/hw.h"
#include "hw/sim/sim.h"

#if __has_include("hw/cuda/cuda_backend.h")
#include "hw/cuda/cuda_backend.h"
#define MB_HAVE_CUDA_BACKEND 1
#endif
#if __has_include("hw/hip/hip_backend.h")
#include "hw/hip/hip_backend.h"
#define MB_HAVE_HIP_BACKEND 1
#endif

const struct mb_hw_backend mb__hw_backends[] = {
#ifdef MB_HAVE_CUDA_BACKEND
    {"cuda", mb__cuda_describe, mb__cuda_open},
#endif
#ifdef MB_HAVE_HIP_BACKEND
    {"hip", mb__hip_describe, mb__hip_open},
#endif
    {"sim", mb__sim_describe, mb__sim_open},
};
const unsigned mb__hw_backend_count = sizeof(mb__hw_backends) / sizeof(mb__hw_backends[0]);
