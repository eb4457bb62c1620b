/* SPDX-License-Identifier: MIT */
/*
 * The traces of data/rocm on the software MI210: every block's edges are written and read back,
 * and what MoonBright asks of the driver stands beside what a model of hipMalloc and hipFree asks
 * (data/rocm/README.md tells the model and the sources of its numbers). Modelled, and not run on
 * AMD hardware.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace/trace.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

enum { PAGE = 4096, PARTS = (int)(2 * RT_MIB / PAGE), BLOCKS = 512, EDGE = 64, STREAMS = 16 };

/* ------------------------------------------------------------ the vendor's calls, as a model */

/* A block of 2 MiB that small requests are cut from. */
struct chunk {
    struct chunk *next;
    unsigned used; /* pages */
    uint8_t taken[PARTS];
};

struct vendor {
    struct mb_hw_dev *sim; /* for its costs */
    struct chunk *chunks;
    uint64_t held, peak, ns, calls;
};

static uint64_t pages_of(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE;
}

static void from_kernel(struct vendor *v, uint64_t bytes)
{
    v->calls++;
    v->ns += mb__sim_stock_ns(v->sim, MB_SIM_STOCK_MALLOC, bytes);
    v->held += bytes;
    v->peak = v->held > v->peak ? v->held : v->peak;
}

static void to_kernel(struct vendor *v, uint64_t bytes)
{
    v->calls++;
    v->ns += mb__sim_stock_ns(v->sim, MB_SIM_STOCK_FREE, bytes);
    v->held -= bytes;
}

/* First fit; -1: no room. */
static int cut(struct chunk *c, unsigned pages)
{
    unsigned run = 0;

    for (unsigned p = 0; p < PARTS; p++) {
        run = c->taken[p] ? 0 : run + 1;
        if (run < pages)
            continue;
        memset(&c->taken[p + 1 - pages], 1, pages);
        c->used += pages;
        return (int)(p + 1 - pages);
    }
    return -1;
}

struct vendor_block {
    struct chunk *chunk; /* NULL: the kernel's own */
    unsigned page;
    uint64_t pages;
};

static struct vendor_block vendor_malloc(struct vendor *v, uint64_t bytes)
{
    struct vendor_block b = {.pages = pages_of(bytes)};
    int at = -1;

    if (b.pages >= PARTS) {
        from_kernel(v, b.pages * PAGE);
        return b;
    }
    for (struct chunk *c = v->chunks; c && at < 0; c = c->next) {
        at = cut(c, (unsigned)b.pages);
        b.chunk = c;
    }
    if (at < 0) {
        b.chunk = calloc(1, sizeof(*b.chunk));
        CHECK(b.chunk != NULL);
        b.chunk->next = v->chunks;
        v->chunks = b.chunk;
        from_kernel(v, 2 * RT_MIB);
        at = cut(b.chunk, (unsigned)b.pages);
    }
    b.page = (unsigned)at;
    return b;
}

static void vendor_free(struct vendor *v, struct vendor_block b)
{
    struct chunk **at = &v->chunks;

    if (!b.chunk) {
        to_kernel(v, b.pages * PAGE);
        return;
    }
    memset(&b.chunk->taken[b.page], 0, b.pages);
    b.chunk->used -= (unsigned)b.pages;
    if (b.chunk->used)
        return;
    while (*at != b.chunk)
        at = &(*at)->next;
    *at = b.chunk->next;
    free(b.chunk);
    to_kernel(v, 2 * RT_MIB);
}

/* ------------------------------------------------------------ one trace */

struct side {
    uint64_t ns;    /* of the host in allocation calls, modelled */
    uint64_t used;  /* peak of memory in frames that hold a block, bytes */
    uint64_t held;  /* peak of memory held from the driver, bytes */
    uint64_t calls; /* that reach the driver; the model's only */
};

static uint64_t host_ns(mb_device dev)
{
    struct mb_sim_counters counters;

    mb__sim_counters(sim_of(dev), &counters);
    return counters.host_ns;
}

struct program {
    mb_device dev;
    struct vendor vendor;
    struct {
        void *ptr;
        uint64_t bytes, number;
        struct vendor_block vendor;
    } block[BLOCKS];
    mb_stream stream[STREAMS];
    uint64_t allocs;
    struct side ours;
};

static mb_stream stream_of(struct program *p, uint32_t index)
{
    CHECK(index < STREAMS);
    if (index && !p->stream[index])
        p->stream[index] = rt_stream(p->dev);
    return p->stream[index];
}

/* First and last words. */
static void edges(struct program *p, uint32_t slot, mb_stream stream, bool write)
{
    uint64_t bytes = p->block[slot].bytes / 8 * 8, edge = bytes < EDGE ? bytes : EDGE;
    char *at = p->block[slot].ptr;

    /* The two must not overlap: each begins its pattern anew. */
    for (unsigned end = 0; edge && end < (bytes < 2 * EDGE ? 1 : 2); end++) {
        char *here = at + (end ? bytes - edge : 0);

        if (write)
            rt_fill(p->dev, here, edge, p->block[slot].number, stream);
        else
            rt_verify(p->dev, here, edge, p->block[slot].number, stream);
    }
}

static void serve(struct program *p, const struct trace_event *event)
{
    mb_stream stream = stream_of(p, event->stream);
    uint64_t before;

    CHECK(event->slot < BLOCKS);
    if (event->op == TRACE_ALLOC) {
        p->block[event->slot].bytes = event->bytes;
        p->block[event->slot].number = ++p->allocs;
        before = host_ns(p->dev);
        p->block[event->slot].ptr = rt_malloc(p->dev, event->bytes, stream);
        p->ours.ns += host_ns(p->dev) - before;
        p->block[event->slot].vendor = vendor_malloc(&p->vendor, event->bytes);
        edges(p, event->slot, stream, true);
    } else if (event->op == TRACE_FREE) {
        edges(p, event->slot, stream, false);
        before = host_ns(p->dev);
        RT_OK(mb_free_async(p->dev, p->block[event->slot].ptr, stream));
        p->ours.ns += host_ns(p->dev) - before;
        vendor_free(&p->vendor, p->block[event->slot].vendor);
    }
}

static void run(const char *path, const char *name, struct side *ours, struct side *theirs)
{
    static struct program p; /* large */
    struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *reader = NULL;
    struct trace_event event;
    enum trace_status status;
    char error[256] = "";
    struct mb_stats stats;

    memset(&p, 0, sizeof(p));
    p.dev = rt_open("backend:sim,model:mi210");
    p.vendor.sim = sim_of(p.dev);
    if (trace_open(path, &options, &reader, error, sizeof(error)))
        FAIL("%s", error);
    while ((status = trace_next(reader, &event)) == TRACE_OK)
        serve(&p, &event);
    if (status != TRACE_END)
        FAIL("%s", trace_error(reader));
    CHECK_EQ(trace_info(reader)->live_blocks, 0);
    CHECK_EQ(p.vendor.held, 0);
    stats = rt_stats(p.dev);
    CHECK_EQ(stats.requested_peak_bytes, trace_info(reader)->requested_peak_bytes);
    trace_close(reader);
    *ours = (struct side){
        .ns = p.ours.ns, .used = stats.frames_used_peak_bytes, .held = stats.reserved_peak_bytes};
    *theirs = (struct side){.ns = p.vendor.ns, .held = p.vendor.peak, .calls = p.vendor.calls};
    rt_clean(p.dev);
    rt_close(p.dev);
    printf("  %-24s %10.1f %10.1f %10.1f   %10.1f %10.1f %5llu\n", name, (double)ours->ns / 1e3,
           (double)ours->used / RT_MIB, (double)ours->held / RT_MIB, (double)theirs->ns / 1e3,
           (double)theirs->held / RT_MIB, (unsigned long long)theirs->calls);
}

static int is_trace(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot && !strcmp(dot, ".csv");
}

TEST(every_trace_beside_the_vendor_model)
{
    const char *root = getenv("MB_SOURCE_DIR");
    struct side ours, theirs, ours_all = {0}, theirs_all = {0};
    struct dirent **list = NULL;
    char dir[512], path[1024];
    int count;

    snprintf(dir, sizeof(dir), "%s/data/rocm", root ? root : ".");
    count = scandir(dir, &list, is_trace, alphasort);
    CHECK(count >= 20);
    printf("  modelled on the software MI210, not run on AMD hardware; times are choices, see "
           "data/rocm\n");
    printf("  %-24s %32s   %27s\n", "", "MoonBright", "hipMalloc, hipFree (model)");
    printf("  %-24s %10s %10s %10s   %10s %10s %5s\n", "trace", "us", "used MiB", "held MiB", "us",
           "held MiB", "calls");
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, list[i]->d_name);
        *strrchr(list[i]->d_name, '.') = '\0';
        run(path, list[i]->d_name, &ours, &theirs);
        ours_all.ns += ours.ns;
        theirs_all.ns += theirs.ns;
        free(list[i]);
    }
    free(list);
    printf("  %d traces, 0 wrong; in all %.1f us against %.1f us\n", count,
           (double)ours_all.ns / 1e3, (double)theirs_all.ns / 1e3);
}
