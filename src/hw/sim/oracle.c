/* SPDX-License-Identifier: MIT */
/*
 * oracle.c - which frame each access must reach, and whether it did.
 *
 * vm says in program order what the program must see from its next access on (intend). An access
 * takes a copy of the expectation when it is enqueued, as runs of consecutive pages, and is judged
 * page by page when it is executed, long after the shadow may have moved on. The oracle knows
 * nothing of TLBs, tables or streams, so it cannot share a mistake with them.
 *
 * A wrong access is counted for each contiguous piece: «stale» another frame than expected,
 * «foreign» nothing was expected there, «released» no slab holds the frame any more. The data moves
 * all the same, to the wrong frame: contents show it as well.
 */
#include "hw/sim/dev.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_SHIFT = MB_FRAME_SHIFT + SIM_SHADOW_SHIFT };
#define FIRST_VA ((uint64_t)1 << SIM_ORDINAL_SHIFT)

enum mb_err mb__sim_oracle_open(struct sim_dev *dev)
{
    struct sim_oracle *oracle = &dev->oracle;

    /* Peers' addresses too. */
    oracle->parts = (unsigned)((uint64_t)SIM_ORDINALS << (SIM_ORDINAL_SHIFT - PART_SHIFT));
    oracle->part = calloc(oracle->parts, sizeof(struct sim_shadow *));
    if (!oracle->part)
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for the oracle");
    return MB_OK;
}

void mb__sim_oracle_close(struct sim_dev *dev)
{
    struct sim_oracle *oracle = &dev->oracle;

    for (unsigned i = 0; oracle->part && i < oracle->parts; i++) {
        struct sim_shadow *part = oracle->part[i];

        for (unsigned k = 0; part && part->small && k < SIM_SHADOW; k++)
            free(part->small[k]);
        if (part)
            free(part->small);
        free(part);
    }
    free(oracle->part);
}

/* The shadow that holds `va`, made if `make`; NULL: none, or no host memory. */
static struct sim_shadow *shadow_of(struct sim_dev *dev, uint64_t va, bool make)
{
    struct sim_oracle *oracle = &dev->oracle;
    uint64_t i = (va - FIRST_VA) >> PART_SHIFT;

    if (va < FIRST_VA || i >= oracle->parts)
        return NULL;
    if (!oracle->part[i] && make) {
        struct sim_shadow *part = malloc(sizeof(*part));

        if (!part) {
            dev->mem.failed = true;
            return NULL;
        }
        memset(part->page, 0xff, sizeof(part->page));
        part->small = NULL;
        oracle->part[i] = part;
    }
    return oracle->part[i];
}

static unsigned page_of(const struct sim_dev *dev, uint64_t va)
{
    (void)dev;
    return (unsigned)((va - FIRST_VA) >> MB_FRAME_SHIFT) & (SIM_SHADOW - 1);
}

/* Table of the 512 small pages of a 2 MiB page, filled with what the page said before. */
static uint32_t *small_of(struct sim_dev *dev, struct sim_shadow *shadow, unsigned page)
{
    uint32_t **all = shadow->small, was = shadow->page[page];
    uint32_t *small = all ? all[page] : NULL;

    if (was == SIM_SMALL)
        return small;
    if (!all)
        all = shadow->small = calloc(SIM_SHADOW, sizeof(uint32_t *));
    if (all && !small)
        small = all[page] = malloc(MB_FRAME_PFNS * sizeof(uint32_t));
    if (!small) {
        dev->mem.failed = true;
        return NULL;
    }
    for (uint32_t i = 0; i < MB_FRAME_PFNS; i++)
        small[i] = was == SIM_NOTHING ? SIM_NOTHING : was + i;
    shadow->page[page] = SIM_SMALL;
    return small;
}

static void intend_small(struct sim_dev *dev, struct sim_shadow *shadow, uint64_t va,
                         unsigned leaf_shift, uint32_t pfn)
{
    uint32_t *small = small_of(dev, shadow, page_of(dev, va));
    uint32_t first = (uint32_t)(va >> MB_PFN_SHIFT) & (MB_FRAME_PFNS - 1);

    for (uint32_t i = 0; small && i < 1u << (leaf_shift - MB_PFN_SHIFT); i++)
        small[first + i] = pfn == SIM_NOTHING ? SIM_NOTHING : pfn + i;
}

void mb__sim_oracle_intend(struct sim_dev *dev, uint64_t va, uint32_t count, unsigned leaf_shift,
                           const mb_pfn *pfns)
{
    for (uint32_t i = 0; i < count; i++, va += (uint64_t)1 << leaf_shift) {
        struct sim_shadow *shadow = shadow_of(dev, va, pfns != NULL);
        uint32_t pfn = pfns ? pfns[i].n : SIM_NOTHING;

        if (!shadow)
            continue;
        if (leaf_shift >= MB_FRAME_SHIFT)
            shadow->page[page_of(dev, va)] = pfn;
        else
            intend_small(dev, shadow, va, leaf_shift, pfn);
    }
}

uint32_t mb__sim_oracle_expect(struct sim_dev *dev, uint64_t va)
{
    const struct sim_shadow *shadow = shadow_of(dev, va, false);
    uint32_t page = shadow ? shadow->page[page_of(dev, va)] : SIM_NOTHING;
    uint32_t in_page = (uint32_t)(va >> MB_PFN_SHIFT) & (MB_FRAME_PFNS - 1);

    if (page == SIM_SMALL)
        return shadow->small[page_of(dev, va)][in_page];
    return page == SIM_NOTHING ? SIM_NOTHING : page + in_page;
}

/* 4 KiB pages from va on, at most `most`, that the shadow describes by one run. */
static uint32_t pages_alike(struct sim_dev *dev, uint64_t va, uint32_t most)
{
    const struct sim_shadow *shadow = shadow_of(dev, va, false);
    uint32_t left = MB_FRAME_PFNS - ((uint32_t)(va >> MB_PFN_SHIFT) & (MB_FRAME_PFNS - 1));

    if (shadow && shadow->page[page_of(dev, va)] == SIM_SMALL)
        return 1;
    return left < most ? left : most;
}

static bool scratch_room(struct sim_dev *dev)
{
    size_t capacity = dev->scratch_capacity ? 2 * dev->scratch_capacity : 256;
    uint32_t *scratch;

    if (dev->scratch_count + 2 <= dev->scratch_capacity)
        return true;
    scratch = realloc(dev->scratch, capacity * sizeof(*scratch));
    if (!scratch)
        return false;
    dev->scratch = scratch;
    dev->scratch_capacity = capacity;
    return true;
}

uint32_t mb__sim_oracle_snapshot(struct sim_dev *dev, uint64_t va, uint64_t bytes)
{
    uint64_t page = va >> MB_PFN_SHIFT, end = (va + bytes - 1) >> MB_PFN_SHIFT;
    uint32_t runs = 0;

    while (page <= end) {
        uint64_t left = end - page + 1;
        uint32_t pfn = mb__sim_oracle_expect(dev, page << MB_PFN_SHIFT);
        uint32_t pages =
            pages_alike(dev, page << MB_PFN_SHIFT, left > UINT32_MAX ? UINT32_MAX : (uint32_t)left);
        uint32_t *last = runs ? &dev->scratch[dev->scratch_count - 2] : NULL;

        if (last && (pfn == SIM_NOTHING ? last[0] == SIM_NOTHING
                                        : last[0] != SIM_NOTHING && last[0] + last[1] == pfn)) {
            last[1] += pages;
        } else {
            if (!scratch_room(dev))
                return 0;
            dev->scratch[dev->scratch_count++] = pfn;
            dev->scratch[dev->scratch_count++] = pages;
            runs++;
        }
        page += pages;
    }
    return runs;
}

void mb__sim_oracle_note(struct sim_dev *dev, const struct mb_hw_stream *stream, const char *work,
                         const char *why, uint64_t va, uint32_t expected, uint32_t actual)
{
    struct sim_oracle *oracle = &dev->oracle;

    dev->counters.wrong_accesses++;
    if (oracle->wrongs == SIM_WRONGS)
        return;
    oracle->wrong[oracle->wrongs++] = (struct mb_sim_wrong){
        .va = {va},
        .expected = {expected},
        .actual = {actual},
        .stream = stream->id,
        .time_ns = dev->now_ns,
        .work = work,
        .why = why,
    };
}

/* Is the frame one that a slab of its device holds? The donor counts: reaching it is «stale» or
 * «foreign». */
static bool frame_held(struct sim_dev *dev, const struct sim_where *where, uint64_t phys)
{
    bool taken = mb__sim_share(dev, where->peer != 0), held;
    const struct sim_memory *mem = mb__sim_memory_of(dev, where);
    uint32_t frame = mem ? mb__sim_memory_frame(mem, phys) : UINT32_MAX;

    held = frame != UINT32_MAX && mem->held[frame];
    mb__sim_unshare(taken);
    return held;
}

static void judge_piece(struct sim_dev *dev, const struct mb_hw_stream *stream, const char *work,
                        uint64_t va, const struct sim_where *where, uint64_t phys,
                        uint32_t expected)
{
    uint32_t actual = (uint32_t)(phys >> MB_PFN_SHIFT);

    dev->sim.accesses++;
    if (where->sparse || where->fault)
        actual = SIM_NOTHING;
    if (actual != SIM_NOTHING && !frame_held(dev, where, phys)) {
        dev->sim.released_accesses++;
        mb__sim_oracle_note(dev, stream, work, "released", va, expected, actual);
    } else if (actual != expected ||
               (actual != SIM_NOTHING && where->peer != mb__sim_peer_of(dev, va))) {
        mb__sim_oracle_note(dev, stream, work, expected == SIM_NOTHING ? "foreign" : "stale", va,
                            expected, actual);
    }
}

void mb__sim_oracle_judge(struct sim_dev *dev, const struct mb_hw_stream *stream, const char *work,
                          uint64_t va, uint64_t bytes, const struct sim_where *where,
                          struct sim_expect *expect)
{
    uint64_t first = va >> MB_PFN_SHIFT, pages = ((va + bytes - 1) >> MB_PFN_SHIFT) - first + 1;
    uint64_t phys = where->phys;

    if (!expect->judged)
        return;
    while (pages && expect->left) {
        uint32_t in_run = expect->run->pages - expect->in_run;
        uint64_t here = in_run < pages ? in_run : pages;
        uint32_t pfn = expect->run->pfn;

        judge_piece(dev, stream, work, va, where, phys,
                    pfn == SIM_NOTHING ? pfn : pfn + expect->in_run);
        /* A run must not merely begin right: the leaf gives consecutive frames, and so does the
         * run. */
        pages -= here;
        phys = (phys & ~(uint64_t)4095) + (here << MB_PFN_SHIFT);
        va = (va & ~(uint64_t)4095) + (here << MB_PFN_SHIFT);
        expect->in_run += (uint32_t)here;
        if (expect->in_run == expect->run->pages) {
            expect->run++;
            expect->left--;
            expect->in_run = 0;
        }
    }
}

unsigned mb__sim_wrongs(struct mb_hw_dev *hw, struct mb_sim_wrong *out, unsigned capacity)
{
    struct sim_dev *dev = sim_dev_of(hw);
    unsigned count;

    sim_lock(dev);
    count = dev->oracle.wrongs < capacity ? dev->oracle.wrongs : capacity;
    memcpy(out, dev->oracle.wrong, count * sizeof(*out));
    sim_unlock(dev);
    return count;
}

static void frame_text(mb_pfn pfn, char *text, size_t size)
{
    if (pfn.n == SIM_NOTHING)
        snprintf(text, size, "nothing");
    else
        snprintf(text, size, "frame 0x%x", pfn.n);
}

void mb__sim_first_wrong(struct mb_hw_dev *hw, char *text, size_t size)
{
    struct mb_sim_wrong wrong;
    char expected[32], actual[32];

    if (!size)
        return;
    text[0] = 0;
    if (!mb__sim_wrongs(hw, &wrong, 1))
        return;
    frame_text(wrong.expected, expected, sizeof(expected));
    frame_text(wrong.actual, actual, sizeof(actual));
    snprintf(text, size, "%s %s: va 0x%llx must reach %s, reached %s; stream %u at %llu ns",
             wrong.why, wrong.work, (unsigned long long)wrong.va.addr, expected, actual,
             wrong.stream, (unsigned long long)wrong.time_ns);
}
