/* SPDX-License-Identifier: MIT */
/*
 * copy_list.h - copies that travel in the parameters of one launch; read by C and CUDA C++ alike.
 *
 * Of a grid of (tiles, copies) the blocks of column y make copy y together; more copies than the
 * large list holds are several launches. What a launch costs grows with the bytes of its
 * parameters, used or not: so few copies have a list of their own.
 */
#ifndef MB_KERNELS_CUDA_COPY_LIST_H
#define MB_KERNELS_CUDA_COPY_LIST_H

#include <stdint.h>

enum {
    MB_COPY_LIST_S = 16,
    MB_COPY_LIST_L = 168, /* within the classic 4 KiB of parameters */
    MB_COPY_LIST_THREADS = 512,
    /* What is worth a block: two accesses of 16 bytes by each of its threads. */
    MB_COPY_LIST_TILE = MB_COPY_LIST_THREADS * 2 * 16,
};

/* Addresses and size are multiples of 8. Copies of one launch do not overlap. */
struct mb_copy_entry {
    uint64_t dst, src; /* device addresses */
    uint64_t bytes;
};

struct mb_copy_list_s {
    struct mb_copy_entry entry[MB_COPY_LIST_S];
};
struct mb_copy_list_l {
    struct mb_copy_entry entry[MB_COPY_LIST_L];
};

#endif
