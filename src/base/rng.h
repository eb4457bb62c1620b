/* SPDX-License-Identifier: MIT */
/*
 * rng.h - seeded random numbers: splitmix64 to spread a seed, xoshiro256** for the sequence (both
 * by Vigna, public domain algorithms). Not for secrets. The same seed gives the same sequence
 * everywhere.
 */
#ifndef MB_BASE_RNG_H
#define MB_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct mb_rng {
    uint64_t s[4]; /* never all 0 */
};

/* Next of the sequence whose state is *state. */
static inline uint64_t mb__splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline void mb__rng_seed(struct mb_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = mb__splitmix64(&seed);
}

static inline uint64_t mb__rng_rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static inline uint64_t mb__rng_next(struct mb_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = mb__rng_rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = mb__rng_rotl(s[3], 45);
    return result;
}

/* Unbiased in [0, bound); bound > 0. */
static inline uint64_t mb__rng_below(struct mb_rng *rng, uint64_t bound)
{
    /* The lowest 2^64 mod bound results are thrown away, so that each remainder is as likely. */
    uint64_t skip = (0 - bound) % bound;
    uint64_t x;

    do
        x = mb__rng_next(rng);
    while (x < skip);
    return x % bound;
}

/* In [lo, hi], both included; lo <= hi, not the full 64-bit range. */
static inline uint64_t mb__rng_range(struct mb_rng *rng, uint64_t lo, uint64_t hi)
{
    return lo + mb__rng_below(rng, hi - lo + 1);
}

/* In [0, 1), 53 bits. */
static inline double mb__rng_unit(struct mb_rng *rng)
{
    return (double)(mb__rng_next(rng) >> 11) * 0x1p-53;
}

/* Random order, every one as likely. */
static inline void mb__rng_shuffle_u32(struct mb_rng *rng, uint32_t *list, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)mb__rng_below(rng, i);
        uint32_t t = list[i - 1];

        list[i - 1] = list[j];
        list[j] = t;
    }
}

#endif
