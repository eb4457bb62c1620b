/* SPDX-License-Identifier: MIT */
/*
 * pages.c - reads device memory over BAR1, one proved or to-be-proved page at a time.
 *
 * How       A view of 4 KiB is mapped read-only, kept until another page is asked for. Single words
 *           are read in place; where most of a page is wanted it is copied once by 64-byte lines,
 *           since every narrow read of write-combined memory is a round trip over the bus.
 * Keeping   Making and undoing a view are calls into the driver, and each walk takes five of them,
 *           most of the same pages. With walk_views:keep the last views stay with the device. Only
 *           views are kept, never what was read: each walk reads again, and reads no page that it
 *           was not led to.
 * Locking   the views of a device are for one reader at a time; a second one makes its own.
 */
#include "hw/cuda/cuda.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hw/nvrm/fence.h"

enum { PAGE = 4096 };

#if defined(__x86_64__)
__attribute__((target("sse4.1"))) static void read_lines(const volatile void *from, uint64_t *to)
{
    const char *p = (const char *)(uintptr_t)from;

    /* Streaming loads fill a line buffer: one bus read per 64 bytes. */
    for (unsigned i = 0; i < PAGE; i += 16)
        _mm_store_si128((__m128i *)(void *)((char *)to + i),
                        _mm_stream_load_si128((__m128i *)(uintptr_t)(p + i)));
}
#endif

void mb__cuda_read_page(const volatile void *from, uint64_t to[512])
{
    mb__nvrm_fence();
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.1")) {
        read_lines(from, to);
        return;
    }
#endif
    for (unsigned i = 0; i < 512; i++)
        to[i] = ((const volatile uint64_t *)from)[i];
}

void mb__cuda_pages_init(struct mb_cuda *dev, struct mb_cuda_pages *pages)
{
    pages->dev = dev;
    pages->phys = UINT64_MAX;
    pages->map = (struct nvrm_cpu_map){.addr = NULL};
    pages->copied = pages->want_copy = false;
    pages->keeps = dev->keep_views && !atomic_flag_test_and_set(&dev->views_busy);
}

/* A kept view stays with the device. */
static void close_view(struct mb_cuda_pages *pages)
{
    if (!pages->keeps)
        mb__nvrm_cpu_unmap(pages->dev->rm, &pages->map);
    pages->map = (struct nvrm_cpu_map){.addr = NULL};
    pages->phys = UINT64_MAX;
    pages->copied = false;
}

void mb__cuda_pages_fini(struct mb_cuda_pages *pages)
{
    close_view(pages);
    if (pages->keeps)
        atomic_flag_clear(&pages->dev->views_busy);
    pages->keeps = false;
}

void mb__cuda_pages_drop(struct mb_cuda *dev)
{
    for (unsigned i = 0; i < MB_CUDA_VIEWS; i++) {
        if (dev->views[i].map.addr)
            mb__nvrm_cpu_unmap(dev->rm, &dev->views[i].map);
        dev->views[i].map = (struct nvrm_cpu_map){.addr = NULL};
    }
}

/* The view of `page` that is kept, or a new one in the place of the oldest. */
static enum mb_err kept_view(struct mb_cuda *dev, uint64_t page, struct nvrm_cpu_map *out)
{
    struct mb_cuda_kept_view *v;
    enum mb_err err;

    for (unsigned i = 0; i < MB_CUDA_VIEWS; i++) {
        if (dev->views[i].map.addr && dev->views[i].phys == page) {
            *out = dev->views[i].map;
            return MB_OK;
        }
    }
    v = &dev->views[dev->next_view++ % MB_CUDA_VIEWS];
    if (v->map.addr)
        mb__nvrm_cpu_unmap(dev->rm, &v->map);
    v->map = (struct nvrm_cpu_map){.addr = NULL};
    err = mb__nvrm_phys_view_cpu(dev->phys, page, NVRM_CPU_READ_ONLY, &v->map);
    if (err)
        return err;
    v->phys = page;
    *out = v->map;
    return MB_OK;
}

static enum mb_err turn_to(struct mb_cuda_pages *pages, uint64_t page)
{
    enum mb_err err;

    if (pages->phys == page)
        return MB_OK;
    close_view(pages);
    err = pages->keeps
              ? kept_view(pages->dev, page, &pages->map)
              : mb__nvrm_phys_view_cpu(pages->dev->phys, page, NVRM_CPU_READ_ONLY, &pages->map);
    if (!err)
        pages->phys = page;
    return err;
}

static enum mb_err read_word(void *user, uint64_t phys, uint64_t *value)
{
    struct mb_cuda_pages *pages = user;
    uint64_t offset = phys % PAGE;
    enum mb_err err = turn_to(pages, phys - offset);

    if (err)
        return err;
    if (pages->want_copy && !pages->copied) {
        mb__cuda_read_page(pages->map.addr, pages->copy);
        pages->copied = true;
    }
    if (pages->want_copy)
        *value = pages->copy[offset / 8];
    else
        *value = ((const volatile uint64_t *)pages->map.addr)[offset / 8];
    return MB_OK;
}

struct mb_cuda_reader mb__cuda_pages_reader(struct mb_cuda_pages *pages)
{
    return (struct mb_cuda_reader){.read = read_word, .user = pages};
}
