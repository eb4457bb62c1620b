/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a sequence of public calls on the software GPU, several streams, valid and invalid
 * arguments.
 *
 * Every block and page that is written is verified by what the fuzzer knows must be in it. At the
 * end: no wrong word, no wrong access, no fault, every invariant, live entries as recorded, nothing
 * left.
 *
 * Input     byte 0: configuration; then operations of 1 byte and what each takes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "moonbright.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCKS = 16, STREAMS = 4, EVENTS = 4, POOLS = 3, MEMS = 4, PAGES = 24, OPS_MAX = 400 };
#define PAGE ((uint64_t)2 << 20)

struct block {
    char *ptr;
    uint64_t bytes, seed; /* seed 0: never written */
    unsigned stream;
};

/* What one page of the reservation shows. */
struct page {
    int mem;        /* -1: nothing */
    unsigned index; /* page of the memory object */
    enum mb_prot prot;
};

struct fuzz {
    const uint8_t *data;
    size_t left;
    mb_device dev;
    mb_stream stream[STREAMS]; /* [0] the default one */
    mb_event event[EVENTS];
    mb_pool pool[POOLS];
    struct block block[BLOCKS];
    mb_mem mem[MEMS];
    unsigned mem_pages[MEMS];
    uint64_t mem_seed[MEMS][PAGES]; /* contents of each of its pages; 0: undefined */
    char *va;
    struct page page[PAGES];
    uint64_t seeds;
};

static uint8_t byte(struct fuzz *f)
{
    if (!f->left)
        return 0;
    f->left--;
    return *f->data++;
}

static unsigned below(struct fuzz *f, unsigned n)
{
    return byte(f) % n;
}

/* Sizes of every kind, from 0 to more than the device has. */
static uint64_t any_size(struct fuzz *f)
{
    unsigned shift = below(f, 28);
    uint64_t low = byte(f);

    return ((uint64_t)1 << shift) + low * ((uint64_t)1 << (shift > 8 ? shift - 8 : 0));
}

/* All streams' work is behind everything so far. */
static void join_all(struct fuzz *f)
{
    need(mb_device_sync(f->dev) == MB_OK);
}

/* ------------------------------------------------------------ blocks */

static void write_block(struct fuzz *f, struct block *block)
{
    uint64_t words = block->bytes / 8 * 8;

    block->seed = ++f->seeds;
    need(!mb_fill_async(f->dev, block->ptr, words < 65536 ? words : 65536, block->seed,
                        f->stream[block->stream]));
}

static void read_block(struct fuzz *f, const struct block *block)
{
    uint64_t words = block->bytes / 8 * 8;

    if (block->seed)
        need(!mb_verify_async(f->dev, block->ptr, words < 65536 ? words : 65536, block->seed,
                              f->stream[block->stream]));
}

static void do_malloc(struct fuzz *f)
{
    struct block *block = &f->block[below(f, BLOCKS)];
    unsigned stream = below(f, STREAMS), how = below(f, 4);
    uint64_t bytes = any_size(f);
    void *ptr = NULL;
    enum mb_err err;

    if (block->ptr)
        return;
    if (how == 0) {
        err = mb_malloc(f->dev, bytes, &ptr);
    } else if (how == 1 && f->pool[below(f, POOLS)]) {
        err = mb_pool_malloc_async(f->pool[0] ? f->pool[0] : NULL, bytes, f->stream[stream], &ptr);
        if (!f->pool[0])
            need(err == MB_ERR_INVALID);
    } else {
        err = mb_malloc_async(f->dev, bytes, f->stream[stream], &ptr);
    }
    need(!err == (ptr != NULL));
    if (err)
        return;
    *block = (struct block){ptr, bytes, 0, stream};
    write_block(f, block);
}

static void do_free(struct fuzz *f)
{
    struct block *block = &f->block[below(f, BLOCKS)];
    unsigned how = below(f, 4), other = below(f, STREAMS);
    char *ptr = block->ptr;

    if (!ptr) {
        need(mb_free(f->dev, NULL) == MB_OK);
        return;
    }
    read_block(f, block);
    if (how == 0) {
        join_all(f);
        need(mb_free(f->dev, ptr) == MB_OK);
    } else if (how == 1 && other != block->stream && f->event[0]) {
        need(!mb_event_record(f->dev, f->event[0], f->stream[block->stream]));
        need(!mb_stream_wait_event(f->dev, f->stream[other], f->event[0]));
        need(!mb_free_async(f->dev, ptr, f->stream[other]));
    } else {
        need(!mb_free_async(f->dev, ptr, f->stream[block->stream]));
    }
    block->ptr = NULL;
    if (how == 3)
        need(mb_free_async(f->dev, ptr, NULL) == MB_ERR_DOUBLE_FREE);
}

static void do_realloc(struct fuzz *f)
{
    struct block *block = &f->block[below(f, BLOCKS)];
    uint64_t bytes = any_size(f);
    void *ptr = NULL;

    if (!block->ptr)
        return;
    join_all(f);
    read_block(f, block);
    join_all(f);
    if (mb_realloc(f->dev, block->ptr, bytes, &ptr)) {
        need(!ptr);
    } else {
        need(ptr != NULL);
        block->ptr = ptr;
        if (bytes < block->bytes && bytes < 65536)
            block->seed = 0; /* less is left of the pattern than is verified */
        if (bytes > block->bytes && block->bytes < 65536)
            block->seed = 0;
        block->bytes = bytes;
    }
    read_block(f, block);
}

static void do_use(struct fuzz *f)
{
    struct block *block = &f->block[below(f, BLOCKS)];
    unsigned other = below(f, STREAMS);

    if (!block->ptr)
        return;
    read_block(f, block);
    if (other == block->stream || !f->event[1])
        return;
    need(!mb_event_record(f->dev, f->event[1], f->stream[block->stream]));
    need(!mb_stream_wait_event(f->dev, f->stream[other], f->event[1]));
    need(!mb_record_stream(f->dev, block->ptr, f->stream[other]));
    if (block->seed)
        need(!mb_verify_async(f->dev, block->ptr,
                              block->bytes < 65536 ? block->bytes / 8 * 8 : 65536, block->seed,
                              f->stream[other]));
}

/* ------------------------------------------------------------ mappings */

static void do_mem(struct fuzz *f)
{
    unsigned m = below(f, MEMS), pages = below(f, 8) + 1;

    if (f->mem[m]) {
        need(!mb_mem_release(f->dev, f->mem[m]));
        need(mb_mem_release(f->dev, f->mem[m]) != MB_OK);
        /* What is mapped would stay so, but the fuzzer forgets the contents. */
        for (unsigned i = 0; i < PAGES; i++) {
            struct mb_map_op op = {.kind = MB_UNMAP, .va = f->va + i * PAGE, .bytes = PAGE};

            if (f->page[i].mem != (int)m)
                continue;
            need(!mb_mem_map(f->dev, &op));
            f->page[i].mem = -1;
        }
        f->mem[m] = NULL;
    } else if (!mb_mem_create(f->dev, pages * PAGE, &f->mem[m])) {
        f->mem_pages[m] = pages;
        memset(f->mem_seed[m], 0, sizeof(f->mem_seed[m]));
    } else {
        f->mem[m] = NULL;
    }
}

/* Would the operations be allowed? Plays them on a copy of the pages. */
static int play(const struct fuzz *f, const struct mb_map_op *ops, unsigned count,
                struct page *page)
{
    memcpy(page, f->page, sizeof(f->page));
    for (unsigned o = 0; o < count; o++) {
        unsigned at = (unsigned)(((char *)ops[o].va - f->va) / (int64_t)PAGE);
        unsigned pages = (unsigned)(ops[o].bytes / PAGE);

        if (!pages || at + pages > PAGES)
            return 0;
        for (unsigned i = 0; i < pages; i++) {
            struct page *p = &page[at + i];

            if (ops[o].kind == MB_UNMAP ? p->mem < 0 : ops[o].kind == MB_PROTECT && p->mem < 0)
                return 0;
        }
    }
    return 1;
}

static void apply(struct fuzz *f, const struct mb_map_op *op, int mem)
{
    unsigned at = (unsigned)(((char *)op->va - f->va) / (int64_t)PAGE);

    for (unsigned i = 0; i < op->bytes / PAGE; i++) {
        struct page *p = &f->page[at + i];

        if (op->kind == MB_UNMAP)
            p->mem = -1;
        else if (op->kind == MB_PROTECT)
            p->prot = op->prot;
        else
            *p = (struct page){mem, (unsigned)(op->mem_offset / PAGE) + i, op->prot};
    }
}

static void do_map(struct fuzz *f)
{
    static const enum mb_prot prots[] = {MB_PROT_READ_WRITE, MB_PROT_READ, MB_PROT_NONE,
                                         MB_PROT_READ_WRITE};
    unsigned m = below(f, MEMS), at = below(f, PAGES), pages = below(f, 6) + 1;
    struct mb_map_op op = {.kind = (enum mb_map_kind)(below(f, 3) == 0   ? MB_UNMAP
                                                      : below(f, 4) == 0 ? MB_PROTECT
                                                                         : MB_MAP),
                           .prot = prots[below(f, 4)],
                           .va = f->va + at * PAGE,
                           .bytes = pages * PAGE,
                           .mem = f->mem[m],
                           .mem_offset = below(f, 3) * PAGE};
    unsigned stream = below(f, STREAMS);
    struct page page[PAGES];
    int allowed = play(f, &op, 1, page);
    enum mb_err err;

    join_all(f); /* uses of what the pages show now are over */
    err = stream ? mb_mem_map_async(f->dev, &op, 1, f->stream[stream]) : mb_mem_map(f->dev, &op);
    if (op.kind == MB_MAP && f->mem[m] && op.mem_offset / PAGE + pages <= f->mem_pages[m] &&
        at + pages <= PAGES)
        need(err == MB_OK || err == MB_ERR_MAPPED);
    if (op.kind == MB_UNMAP && allowed)
        need(err == MB_OK);
    if (!allowed || (op.kind == MB_MAP && !f->mem[m]))
        need(err != MB_OK);
    if (!err)
        apply(f, &op, (int)m);
    need(!mb_device_sync(f->dev));
}

static void do_touch(struct fuzz *f)
{
    unsigned at = below(f, PAGES), stream = below(f, STREAMS);
    struct page *p = &f->page[at];
    uint64_t *seed;

    if (p->mem < 0 || p->prot == MB_PROT_NONE)
        return;
    seed = &f->mem_seed[p->mem][p->index];
    join_all(f);
    if (*seed)
        need(!mb_verify_async(f->dev, f->va + at * PAGE, 8192, *seed, f->stream[stream]));
    if (p->prot != MB_PROT_READ_WRITE)
        return;
    *seed = ++f->seeds;
    need(!mb_fill_async(f->dev, f->va + at * PAGE, 8192, *seed, f->stream[stream]));
    join_all(f);
}

/* ------------------------------------------------------------ the rest */

static void do_pool(struct fuzz *f)
{
    unsigned p = below(f, POOLS);
    enum mb_pool_attr attr = (enum mb_pool_attr)below(f, 12);
    uint64_t value = any_size(f);

    if (!f->pool[p]) {
        if (mb_pool_create(f->dev, &f->pool[p]))
            f->pool[p] = NULL;
    } else if (below(f, 3) == 0) {
        enum mb_err err = mb_pool_destroy(f->pool[p]);

        need(err == MB_OK || err == MB_ERR_BUSY);
        if (!err)
            f->pool[p] = NULL;
    } else {
        (void)mb_pool_set(f->pool[p], attr, value);
        (void)mb_pool_get(f->pool[p], attr, &value);
        (void)mb_pool_trim(f->pool[p], value);
    }
}

static void do_stream(struct fuzz *f)
{
    unsigned s = below(f, STREAMS - 1) + 1;

    for (unsigned i = 0; i < BLOCKS; i++)
        if (f->block[i].ptr && f->block[i].stream == s)
            f->block[i].stream = 0;
    join_all(f); /* the default stream takes the blocks over */
    need(!mb_stream_destroy(f->dev, f->stream[s]));
    need(mb_stream_destroy(f->dev, f->stream[s]) != MB_OK);
    need(!mb_stream_create(f->dev, &f->stream[s]));
}

/* Arguments that no call may accept. */
static void do_nonsense(struct fuzz *f)
{
    char *wild = f->va + (any_size(f) & ~UINT64_C(7));
    struct mb_map_op op = {.kind = (enum mb_map_kind)byte(f),
                           .prot = (enum mb_prot)byte(f),
                           .va = wild,
                           .bytes = any_size(f) | 1};
    struct mb_pointer_info info;
    uint64_t value;
    void *ptr = NULL;

    need(mb_malloc(f->dev, 100, NULL) == MB_ERR_INVALID);
    need(mb_malloc(NULL, 100, &ptr) == MB_ERR_INVALID);
    need(mb_free(f->dev, wild + 1) != MB_OK);
    need(mb_mem_map(f->dev, &op) != MB_OK);
    need(mb_mem_map_async(f->dev, NULL, 3, NULL) == MB_ERR_INVALID);
    need(mb_pool_get(NULL, MB_POOL_LIMIT, &value) == MB_ERR_INVALID);
    need(mb_fill_async(f->dev, wild + 3, 16, 1, NULL) == MB_ERR_INVALID);
    need(mb_mem_reserve(f->dev, (uint64_t)1 << 60, 0, &ptr) != MB_OK);
    (void)mb_pointer_info(f->dev, wild, &info);
    need(!ptr && mb_error_detail()[0]);
}

static void do_check(struct fuzz *f)
{
    struct mb_tables_report report;

    join_all(f);
    need(mb_check(f->dev) == MB_OK);
    join_all(f); /* the check may have put unmaps under way */
    need(mb_check_tables(f->dev, false, &report) == MB_OK);
    need(!report.wrong);
    need(!report.busy);
}

static void step(struct fuzz *f)
{
    switch (below(f, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        do_malloc(f);
        break;
    case 4:
    case 5:
    case 6:
        do_free(f);
        break;
    case 7:
        do_use(f);
        break;
    case 8:
        do_realloc(f);
        break;
    case 9:
        do_mem(f);
        break;
    case 10:
    case 11:
        do_map(f);
        break;
    case 12:
        do_touch(f);
        break;
    case 13:
        do_pool(f);
        break;
    case 14:
        byte(f) & 1 ? do_stream(f) : do_check(f);
        break;
    default:
        byte(f) & 1 ? do_nonsense(f) : join_all(f);
        break;
    }
}

static void open_all(struct fuzz *f)
{
    static const char *const configs[] = {
        "backend:sim,device_memory:64m,explore:yes",
        "backend:sim,device_memory:64m,driver_home:yes,explore:yes,seed:2",
        "backend:sim,device_memory:128m,policy:fresh,deferred:yes,explore:yes,seed:3",
        "backend:sim,device_memory:64m,tables:isolated,explore:yes,seed:4",
        "backend:sim,device_memory:64m,model:mi210,explore:yes,seed:5",
        "backend:sim,device_memory:64m,growth:patient,cache:no",
        "backend:sim,device_memory:128m,growth:fast,window_space:1g",
        "backend:sim,device_memory:128m,model:a100,tables:driver",
    };

    need(mb_open(0, configs[byte(f) % 8], &f->dev) == MB_OK);
    for (unsigned i = 1; i < STREAMS; i++)
        need(!mb_stream_create(f->dev, &f->stream[i]));
    for (unsigned i = 0; i < EVENTS; i++)
        need(!mb_event_create(f->dev, &f->event[i]));
    need(!mb_mem_reserve(f->dev, PAGES * PAGE, 0, (void **)&f->va));
    for (unsigned i = 0; i < PAGES; i++)
        f->page[i].mem = -1;
}

static void close_all(struct fuzz *f)
{
    struct mb_stats stats;

    for (unsigned i = 0; i < BLOCKS; i++) {
        if (f->block[i].ptr) {
            read_block(f, &f->block[i]);
            need(!mb_free_async(f->dev, f->block[i].ptr, f->stream[f->block[i].stream]));
        }
    }
    join_all(f);
    for (unsigned i = 0; i < PAGES; i++)
        if (f->page[i].mem >= 0)
            need(!mb_mem_map(f->dev, &(struct mb_map_op){
                                         .kind = MB_UNMAP, .va = f->va + i * PAGE, .bytes = PAGE}));
    for (unsigned i = 0; i < MEMS; i++)
        if (f->mem[i])
            need(!mb_mem_release(f->dev, f->mem[i]));
    need(!mb_mem_unreserve(f->dev, f->va, PAGES * PAGE));
    for (unsigned i = 0; i < EVENTS; i++)
        need(!mb_event_destroy(f->dev, f->event[i]));
    for (unsigned i = 0; i < POOLS; i++) {
        if (!f->pool[i])
            continue;
        need(!mb_pool_set(f->pool[i], MB_POOL_KEEP, 0));
        need(!mb_pool_destroy(f->pool[i]));
    }
    need(mb_check(f->dev) == MB_OK);
    need(mb_check_tables(f->dev, false, NULL) == MB_OK);
    need(!mb_stats_get(f->dev, &stats));
    need(!stats.wrong_words && !stats.wrong_accesses && !stats.faults);
    need(!stats.live_blocks && !stats.requested_bytes && !stats.allocated_bytes);
    mb_close(f->dev);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {.data = data, .left = size};

    if (!size)
        return 0;
    open_all(&f);
    for (unsigned i = 0; f.left && i < OPS_MAX; i++)
        step(&f);
    close_all(&f);
    return 0;
}
