/* SPDX-License-Identifier: MIT */
/*
 * pattern.h - word `index` of the test pattern `seed`: what fill writes, what verify expects and
 * what mb_pattern_word() returns, the same on the host, the software GPU and every device.
 *
 * A splitmix64 step over seed and index. Two properties matter: the mix is a bijection of 64-bit
 * words, so words differ unless seed + index * GOLDEN agree modulo 2^64, and two patterns agree in
 * a word with probability 2^-64; and its argument is linear in the index, so a range is described
 * by one number however it is cut. The software GPU stores ranges that way.
 */
#ifndef MB_KERNELS_PATTERN_H
#define MB_KERNELS_PATTERN_H

#include "formats.h"

/* Odd, so multiplying by it is a bijection as well. */
#define MB_PATTERN_GOLDEN ((uint64_t)0x9e3779b97f4a7c15u)

MB_FMT_FN uint64_t mb_pattern_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * (uint64_t)0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * (uint64_t)0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The inverse of mb_pattern_mix(): the multipliers are the inverses modulo 2^64, the shifts undo
 * z ^= z >> n, which takes two more steps where 2n < 64. */
MB_FMT_FN uint64_t mb_pattern_unmix(uint64_t z)
{
    z = (z ^ (z >> 31) ^ (z >> 62)) * (uint64_t)0x319642b2d24d8ec3u;
    z = (z ^ (z >> 27) ^ (z >> 54)) * (uint64_t)0x96de1b173f119089u;
    return z ^ (z >> 30) ^ (z >> 60);
}

MB_FMT_FN uint64_t mb_pattern(uint64_t seed, uint64_t index)
{
    return mb_pattern_mix(seed + (index + 1) * MB_PATTERN_GOLDEN);
}

#endif
