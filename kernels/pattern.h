/* SPDX-License-Identifier: MIT */
/*
 * pattern.h - word `index` of the test pattern `seed`: what fill writes, what verify expects and what
 * mb_pattern_word() returns, the same on the host, the software GPU and every device.
 *
 * A splitmix64 step over seed and index: any two words of one pattern differ, and two patterns agree
 * in a word with probability 2^-64.
 */
#ifndef MB_KERNELS_PATTERN_H
#define MB_KERNELS_PATTERN_H

#include "formats.h"

MB_FMT_FN uint64_t mb_pattern(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
