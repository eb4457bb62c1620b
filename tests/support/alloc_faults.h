/* SPDX-License-Identifier: MIT */
/*
 * alloc_faults.h - allocations of everything that is linked statically go through the test, which
 * can make the n-th one fail. For one source file of a program that is linked with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc
 */
#ifndef MB_TESTS_ALLOC_FAULTS_H
#define MB_TESTS_ALLOC_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *ptr, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *ptr, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static struct {
    uint64_t used, at; /* fails at this one; 0: never */
    bool lasting;      /* and at all later ones */
    uint64_t hits;
} plan;

static bool fails(void)
{
    uint64_t n = ++plan.used;

    if (!plan.at || n < plan.at || (n > plan.at && !plan.lasting))
        return false;
    plan.hits++;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *ptr, size_t bytes)
{
    return fails() ? NULL : __real_realloc(ptr, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

static void fail_at(uint64_t n, bool lasting)
{
    plan.used = plan.hits = 0;
    plan.at = n;
    plan.lasting = lasting;
}

#endif
