/* SPDX-License-Identifier: MIT */
/*
 * hw.c - the backends of this build, in order of preference.
 *
 * A backend stands above this layer, so its header is not included: the two functions of each are
 * named here, as its own header names them. A vendor's backend is in the list when the tree has
 * that header; the software GPU is always last.
 */
#include "hw/hw.h"

#define BACKEND(name)                                                                              \
    void mb__##name##_describe(int ordinal, struct mb_backend_info *out);                          \
    enum mb_err mb__##name##_open(const struct mb_hw_config *config, struct mb_hw_dev **out)
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, mb__##name##_describe, mb__##name##_open                                            \
    }

#if __has_include("hw/cuda/cuda_backend.h")
#define MB_HAVE_CUDA_BACKEND 1
BACKEND(cuda);
#endif
#if __has_include("hw/hip/hip_backend.h")
#define MB_HAVE_HIP_BACKEND 1
BACKEND(hip);
#endif
BACKEND(sim);

const struct mb_hw_backend mb__hw_backends[] = {
#ifdef MB_HAVE_CUDA_BACKEND
    ROW(cuda),
#endif
#ifdef MB_HAVE_HIP_BACKEND
    ROW(hip),
#endif
    ROW(sim),
};
const unsigned mb__hw_backend_count = sizeof(mb__hw_backends) / sizeof(mb__hw_backends[0]);
