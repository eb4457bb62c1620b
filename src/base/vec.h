/* SPDX-License-Identifier: MIT */
/*
 * vec.h - a growable array of any type.
 *
 *     MB_VEC(struct thing) things = {0};
 *     if (!MB_VEC_PUSH(&things, thing)) ...no host memory, nothing changed...
 *     for (size_t i = 0; i < things.count; i++) use(&things.data[i]);
 *     MB_VEC_FREE(&things);
 *
 * OWNS      the array; items are moved by growth, so keep no pointers into it.
 * LOCKING   the caller's.
 */
#ifndef MB_BASE_VEC_H
#define MB_BASE_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MB_VEC(type)                                                                               \
    struct {                                                                                       \
        type *data;                                                                                \
        size_t count, capacity;                                                                    \
    }

/* The slow half of mb__vec_reserve(), in vec.c. */
bool mb__vec_grow(void *data, size_t *capacity, size_t need, size_t item_bytes);

/* Makes room for `need` items in all. `data` is the address of the data pointer, whatever its type.
 */
static inline bool mb__vec_reserve(void *data, size_t *capacity, size_t need, size_t item_bytes)
{
    return need <= *capacity || mb__vec_grow(data, capacity, need, item_bytes);
}

#if defined(__clang_analyzer__) /* sees one file at a time: room means that there is an array */
#define MB__VEC_TOLD(vec) ((vec)->data || (__builtin_unreachable(), false))
#else
#define MB__VEC_TOLD(vec) true
#endif
#define MB_VEC_RESERVE(vec, need)                                                                  \
    (mb__vec_reserve(&(vec)->data, &(vec)->capacity, (need), sizeof(*(vec)->data)) && /* NOLINT */ \
     MB__VEC_TOLD(vec))
/* false: no host memory, nothing changed. Evaluates `vec` several times. */
#define MB_VEC_PUSH(vec, value)                                                                    \
    (MB_VEC_RESERVE((vec), (vec)->count + 1) && ((vec)->data[(vec)->count++] = (value), true))
#define MB_VEC_POP(vec) ((vec)->data[--(vec)->count])
/* Removes item i by moving the last one there. */
#define MB_VEC_SWAP_REMOVE(vec, i) ((vec)->data[i] = (vec)->data[--(vec)->count])
#define MB_VEC_CLEAR(vec) ((void)((vec)->count = 0))
#define MB_VEC_FREE(vec)                                                                           \
    (free((vec)->data), (vec)->data = NULL, (void)((vec)->count = (vec)->capacity = 0))

#endif
