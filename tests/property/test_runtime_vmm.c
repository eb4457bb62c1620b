/* SPDX-License-Identifier: MIT */
/*
 * Random batches of maps, aliases, unmaps and protections, sleeps and wakes, against a record of
 * what each page must show. A batch with an error in it must change nothing.
 */
#include <inttypes.h>
#include <string.h>

#include "support/runtime_rig.h"

enum {
    PAGES = 48,
    MEMS = 6,
    MEM_PAGES = 8,
    ROUNDS = 3000,
    BATCH = 4,
    STRETCH = 8,
    SEVERAL = 18,
};

/* What a page shows. */
enum shown {
    NOTHING,
    SOMETHING,
    ASLEEP,
};

struct page {
    enum shown shown;
    int mem, index; /* of rig.contents */
    bool writable;
};

struct rig {
    mb_device dev;
    mb_stream stream;
    char *va;
    uint64_t page;
    mb_mem mem[MEMS];
    struct page pages[PAGES];
    uint64_t contents[MEMS][MEM_PAGES]; /* number last filled in; 0: undefined */
    uint64_t numbers;
};

static void *page_va(const struct rig *rig, unsigned page)
{
    return rig->va + page * rig->page;
}

/* Every page that must show something defined is read. */
static void verify_all(struct rig *rig)
{
    for (unsigned i = 0; i < PAGES; i++) {
        const struct page *page = &rig->pages[i];

        if (page->shown != SOMETHING || !rig->contents[page->mem][page->index])
            continue;
        RT_OK(mb_verify_async(rig->dev, page_va(rig, i), 4096,
                              rig->contents[page->mem][page->index], rig->stream));
    }
}

static void fill_page(struct rig *rig, unsigned i)
{
    struct page *page = &rig->pages[i];

    if (page->shown != SOMETHING || !page->writable)
        return;
    rig->contents[page->mem][page->index] = ++rig->numbers * 1000003;
    RT_OK(mb_fill_async(rig->dev, page_va(rig, i), 4096, rig->contents[page->mem][page->index],
                        rig->stream));
}

/* Applies one operation to `pages`, the record of a batch under way. False: it must be refused. */
static bool model_op(struct rig *rig, struct page *pages, const struct mb_map_op *op)
{
    unsigned first = (unsigned)(((char *)op->va - rig->va) / (ptrdiff_t)rig->page);
    unsigned count = (unsigned)(op->bytes / rig->page);
    unsigned src = op->kind == MB_ALIAS
                       ? (unsigned)(((const char *)op->src - rig->va) / (ptrdiff_t)rig->page)
                       : 0;

    for (unsigned i = 0; i < count; i++) {
        struct page *page = &pages[first + i];

        switch (op->kind) {
        case MB_MAP:
            if (page->shown != NOTHING)
                return false;
            page->mem = 0;
            while (rig->mem[page->mem] != op->mem)
                page->mem++;
            page->index = (int)(op->mem_offset / rig->page + i);
            break;
        case MB_ALIAS:
            if (page->shown != NOTHING || pages[src + i].shown != SOMETHING)
                return false;
            page->mem = pages[src + i].mem;
            page->index = pages[src + i].index;
            break;
        case MB_UNMAP:
            if (page->shown == NOTHING)
                return false;
            page->shown = NOTHING;
            continue;
        case MB_PROTECT:
            if (page->shown == NOTHING)
                return false;
            page->writable = op->prot == MB_PROT_READ_WRITE;
            continue;
        }
        page->shown = SOMETHING;
        page->writable = op->prot == MB_PROT_READ_WRITE;
    }
    return true;
}

static struct mb_map_op random_op(struct rig *rig, uint64_t *state)
{
    struct mb_map_op op = {.kind = (enum mb_map_kind)mb_test_random_below(state, 4)};
    unsigned count = 1 + (unsigned)mb_test_random_below(state, 4);

    op.prot = mb_test_random_below(state, 3) ? MB_PROT_READ_WRITE : MB_PROT_READ;
    op.va = page_va(rig, (unsigned)mb_test_random_below(state, PAGES - count));
    op.bytes = count * rig->page;
    op.mem = rig->mem[mb_test_random_below(state, MEMS)];
    op.mem_offset = mb_test_random_below(state, MEM_PAGES - count + 1) * rig->page;
    op.src = page_va(rig, (unsigned)mb_test_random_below(state, PAGES - count));
    return op;
}

/* A sleeping frame must not be mapped or aliased meanwhile; keep the model simple and wake first.
 */
static bool any_asleep(const struct rig *rig)
{
    for (unsigned i = 0; i < PAGES; i++)
        if (rig->pages[i].shown == ASLEEP)
            return true;
    return false;
}

static unsigned random_ops(struct rig *rig, uint64_t *state, struct mb_map_op *ops)
{
    unsigned count = 1 + (unsigned)mb_test_random_below(state, BATCH);

    for (unsigned i = 0; i < count; i++)
        ops[i] = random_op(rig, state);
    return count;
}

/* Operations of a list from `from` on that show frames following each other, or do the same with
 * their pages, become one on a range, now and then. Returns how many there are then. */
static unsigned join_ops(struct rig *rig, uint64_t *state, struct mb_map_op *ops, unsigned from,
                         unsigned count)
{
    unsigned joined = from;

    for (unsigned i = from + 1; i < count; i++) {
        struct mb_map_op *last = &ops[joined];

        if (ops[i].kind == last->kind && ops[i].va == (char *)last->va + last->bytes &&
            ops[i].prot == last->prot && mb_test_random_below(state, 3) &&
            (ops[i].kind != MB_MAP ||
             (ops[i].mem == last->mem && last->mem_offset + last->bytes < MEM_PAGES * rig->page)))
            last->bytes += ops[i].bytes;
        else
            ops[++joined] = ops[i];
    }
    return joined + 1;
}

/* A list of operations that do the same with one page after the other, as far as these are alike:
 * empty ones get frames, others lose theirs, or get other ones or other access. Now and then one
 * operation is a stranger. */
static unsigned random_stretch(struct rig *rig, uint64_t *state, struct mb_map_op *ops)
{
    unsigned first = (unsigned)mb_test_random_below(state, PAGES), count = 0, over;
    bool empty = rig->pages[first].shown == NOTHING;
    struct mb_map_op op = random_op(rig, state);

    op.kind = empty ? (enum mb_map_kind)mb_test_random_below(state, 2)
                    : MB_UNMAP + mb_test_random_below(state, 2);
    over = !empty && mb_test_random_below(state, 2);
    op.kind = over ? MB_MAP : op.kind;
    op.bytes = rig->page;
    while (count < STRETCH && first + count < PAGES &&
           (rig->pages[first + count].shown == NOTHING) == empty) {
        op.va = page_va(rig, first + count);
        op.mem_offset = mb_test_random_below(state, MEM_PAGES) * rig->page;
        do
            op.src = page_va(rig, (unsigned)mb_test_random_below(state, PAGES));
        while (mb_test_random_below(state, 4) &&
               rig->pages[((const char *)op.src - rig->va) / (ptrdiff_t)rig->page].shown ==
                   NOTHING);
        ops[over + count++] = op;
    }
    if (over)
        ops[0] = (struct mb_map_op){
            .kind = MB_UNMAP, .va = page_va(rig, first), .bytes = count * rig->page};
    if (mb_test_random_below(state, 2) && op.kind != MB_ALIAS)
        count = join_ops(rig, state, ops, over, over + count) - over;
    if (!mb_test_random_below(state, 4))
        ops[mb_test_random_below(state, over + count)] = random_op(rig, state);
    return over + count;
}

/* Several stretches one behind the other, as when sequences end and begin in one step; more now and
 * then than the library works on together, and some that touch each other's pages. */
static unsigned random_several(struct rig *rig, uint64_t *state, struct mb_map_op *ops)
{
    unsigned most = mb_test_random_below(state, 4) ? 4 : SEVERAL, count = 0;
    unsigned stretches = 2 + (unsigned)mb_test_random_below(state, most - 1);

    while (stretches--)
        count += random_stretch(rig, state, ops + count);
    return count;
}

static void random_batch(struct rig *rig, uint64_t *state)
{
    static unsigned (*const make[])(struct rig *, uint64_t *, struct mb_map_op *) = {
        random_ops, random_stretch, random_several};
    struct page pages[PAGES];
    struct mb_map_op ops[SEVERAL * (STRETCH + 1)];
    unsigned count = make[mb_test_random_below(state, 3)](rig, state, ops);
    bool good = true;
    enum mb_err err;

    memcpy(pages, rig->pages, sizeof(pages));
    for (unsigned i = 0; good && i < count; i++)
        good = model_op(rig, pages, &ops[i]);
    err = mb_mem_map_async(rig->dev, ops, count, rig->stream);
    CHECK_EQ(err == MB_OK, good);
    if (good)
        memcpy(rig->pages, pages, sizeof(pages));
    else
        CHECK(err == MB_ERR_MAPPED || err == MB_ERR_NOT_MAPPED || err == MB_ERR_NOT_FOUND);
}

static unsigned times_shown(const struct rig *rig, const struct page *page)
{
    unsigned count = 0;

    for (unsigned i = 0; i < PAGES; i++)
        count += rig->pages[i].shown != NOTHING && rig->pages[i].mem == page->mem &&
                 rig->pages[i].index == page->index;
    return count;
}

static void sleep_and_wake(struct rig *rig, uint64_t *state)
{
    unsigned i = (unsigned)mb_test_random_below(state, PAGES);
    struct page *page = &rig->pages[i];
    uint64_t held = rt_stats(rig->dev).allocated_bytes;
    enum mb_err err = mb_mem_sleep(rig->dev, page_va(rig, i), rig->page, rig->stream);

    if (page->shown == NOTHING) {
        CHECK_EQ(err, MB_ERR_NOT_MAPPED);
        return;
    }
    if (times_shown(rig, page) > 1) {
        CHECK_EQ(err, MB_ERR_BUSY);
        return;
    }
    CHECK_OK(err);
    page->shown = ASLEEP;
    CHECK_EQ(rt_stats(rig->dev).allocated_bytes, held - rig->page);
    verify_all(rig);
    RT_OK(mb_mem_wake(rig->dev, page_va(rig, i), rig->page, rig->stream));
    page->shown = SOMETHING;
    rig->contents[page->mem][page->index] = 0;
    CHECK_EQ(rt_stats(rig->dev).allocated_bytes, held);
}

static void open_rig(struct rig *rig, const char *config)
{
    void *va = NULL;

    memset(rig, 0, sizeof(*rig));
    rig->dev = rt_open(config);
    rig->stream = rt_stream(rig->dev);
    rig->page = mb_page_bytes(rig->dev);
    RT_OK(mb_mem_reserve(rig->dev, PAGES * rig->page, 0, &va));
    rig->va = va;
    for (unsigned i = 0; i < MEMS; i++)
        RT_OK(mb_mem_create(rig->dev, MEM_PAGES * rig->page, &rig->mem[i]));
}

static void close_rig(struct rig *rig)
{
    CHECK(!any_asleep(rig));
    for (unsigned i = 0; i < MEMS; i++)
        RT_OK(mb_mem_release(rig->dev, rig->mem[i]));
    verify_all(rig); /* mappings keep frames alive */
    for (unsigned i = 0; i < PAGES; i++) {
        struct mb_map_op op = {.kind = MB_UNMAP, .va = page_va(rig, i), .bytes = rig->page};

        if (rig->pages[i].shown != NOTHING)
            RT_OK(mb_mem_map_async(rig->dev, &op, 1, rig->stream));
    }
    CHECK_EQ(rt_stats(rig->dev).allocated_bytes, 0);
    RT_OK(mb_mem_unreserve(rig->dev, rig->va, PAGES * rig->page));
    rt_close(rig->dev);
}

static void run(const char *config)
{
    static struct rig rig;
    uint64_t state = mb_test_seed();

    open_rig(&rig, config);
    for (unsigned round = 0; round < ROUNDS; round++) {
        random_batch(&rig, &state);
        fill_page(&rig, (unsigned)mb_test_random_below(&state, PAGES));
        if (round % 7 == 0)
            sleep_and_wake(&rig, &state);
        if (round % 5 == 0)
            verify_all(&rig);
        if (round % 100 == 0)
            RT_OK(mb_check(rig.dev));
    }
    close_rig(&rig);
}

TEST(random_batches_nvidia)
{
    run("backend:sim,device_memory:512m,explore:yes");
}

TEST(random_batches_fresh)
{
    run("backend:sim,device_memory:512m,explore:yes,policy:fresh");
}

TEST(random_batches_amd)
{
    run("backend:sim,device_memory:512m,explore:yes,model:mi210");
}

/* Every power of two is either served as asked or refused with what would be served. */
TEST(alignments_that_cannot_be_are_told_apart)
{
    mb_device dev = rt_open("backend:sim,device_memory:512m");
    uint64_t page = mb_page_bytes(dev);
    unsigned refused = 0;

    for (unsigned shift = 0; shift < 64; shift++) {
        uint64_t align = (uint64_t)1 << shift, most = 0;
        void *va = NULL;
        const char *told;
        char asked[40];

        if (!mb_mem_reserve(dev, page, align, &va)) {
            CHECK_EQ((uintptr_t)va % align, 0);
            CHECK_EQ(refused, 0); /* what is larger than one that cannot be cannot be either */
            RT_OK(mb_mem_unreserve(dev, va, page));
            continue;
        }
        refused++;
        CHECK_EQ(mb_mem_reserve(dev, page, align, &va), MB_ERR_NO_ADDRESS);
        CHECK_PTR_EQ(va, NULL);
        snprintf(asked, sizeof(asked), "aligned to 0x%" PRIx64 " ", align);
        CHECK(strstr(mb_error_detail(), asked));
        told = strstr(mb_error_detail(), "largest alignment");
        CHECK(told);
        CHECK_EQ(sscanf(strstr(told, "0x"), "%" SCNx64, &most), 1);
        CHECK(most < align);
        RT_OK(mb_mem_reserve(dev, page, most, &va));
        CHECK_EQ((uintptr_t)va % most, 0);
        RT_OK(mb_mem_unreserve(dev, va, page));
    }
    CHECK(refused > 0); /* 2^63 at least */
    CHECK_EQ(mb_mem_reserve(dev, UINT64_C(1) << 46, UINT64_C(1) << 63, &(void *){NULL}),
             MB_ERR_NO_ADDRESS);
    CHECK(strstr(mb_error_detail(), "does not fit")); /* the size is what is wrong */
    rt_close(dev);
}

TEST(arguments_are_checked)
{
    mb_device dev = rt_open("backend:sim,device_memory:512m");
    uint64_t page = mb_page_bytes(dev);
    struct mb_map_op op;
    void *va = NULL, *other = NULL;
    mb_mem mem;

    CHECK_EQ(mb_mem_reserve(dev, page + 1, 0, &va), MB_ERR_INVALID);
    CHECK_EQ(mb_mem_reserve(dev, 0, 0, &va), MB_ERR_INVALID);
    CHECK_EQ(mb_mem_reserve(dev, page, 3 * page, &va), MB_ERR_INVALID);
    RT_OK(mb_mem_reserve(dev, 4 * page, 64 * RT_MIB, &va));
    CHECK_EQ((uintptr_t)va % (64 * RT_MIB), 0);
    RT_OK(mb_mem_create(dev, 4 * page, &mem));
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, 4 * page, mem, page, NULL};
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_INVALID); /* leaves the memory */
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, 5 * page, mem, 0, NULL};
    CHECK(mb_mem_map(dev, &op) != MB_OK); /* leaves the range */
    op = (struct mb_map_op){MB_MAP, (enum mb_prot)2, va, page, mem, 0, NULL};
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_INVALID);
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, page, (mb_mem)va, 0, NULL};
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_NOT_FOUND);
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, page, mem, 0, NULL};
    RT_OK(mb_mem_map(dev, &op));
    CHECK_EQ(mb_mem_unreserve(dev, va, 4 * page), MB_ERR_BUSY);
    CHECK_EQ(mb_mem_unreserve(dev, va, page), MB_ERR_NOT_FOUND);
    op = (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = page};
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_mem_unreserve(dev, va, 4 * page));
    RT_OK(mb_mem_release(dev, mem));
    CHECK_EQ(mb_mem_release(dev, mem), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_mem_unreserve(dev, va, 4 * page), MB_ERR_NOT_FOUND);
    CHECK_PTR_EQ(other, NULL);
    rt_close(dev);
}
