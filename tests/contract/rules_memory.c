/* SPDX-License-Identifier: MIT */
/* Rules on addresses, frames and table memory. */
#include "contract.h"

#include <string.h>

static bool overlap(mb_va a, uint64_t a_bytes, mb_va b, uint64_t b_bytes)
{
    return a.addr < b.addr + b_bytes && b.addr < a.addr + a_bytes;
}

void contract_caps_are_consistent(struct contract *c)
{
    const struct mb_hw_caps *caps = c->caps;
    const struct mb_hw_ops *hw = c->hw;

    CHECK(c->geometry.levels > 0);
    CHECK_STR_EQ(hw->name, c->config->backend);
    CHECK(caps->leaf_sizes >> MB_FRAME_SHIFT & 1);
    for (unsigned s = 0; s < 64; s++)
        if (caps->leaf_sizes >> s & 1)
            CHECK(mb_fmt_has_leaf(caps->format, s));
    CHECK(caps->group_slots >= 1 && (caps->group_slots & (caps->group_slots - 1)) == 0);
    CHECK_EQ(caps->neighbours_cached, caps->group_slots > 1);
    CHECK(caps->slab_step_bytes >= MB_FRAME_BYTES);
    CHECK_EQ(caps->slab_step_bytes % MB_FRAME_BYTES, 0);
    CHECK_LE(caps->slab_step_bytes, (uint64_t)32 << 20);
    CHECK(caps->total_bytes >= caps->slab_step_bytes);
    CHECK(caps->va_bytes >= caps->total_bytes);
    CHECK_LE(caps->va_bytes, (uint64_t)1 << c->geometry.va_bits);
    if (c->config->hw.device_memory_bytes)
        CHECK_LE(caps->total_bytes, c->config->hw.device_memory_bytes);
    CHECK(caps->tables != NULL && caps->tables[0]);
    CHECK(caps->device_name[0]);
    CHECK(hw->va_reserve && hw->va_release && hw->slab_acquire && hw->slab_release);
    CHECK(hw->submit && hw->stream_create && hw->stream_destroy && hw->stream_open);
    CHECK(hw->stream_close && hw->fence_record && hw->fence_done && hw->fence_wait_stream);
    CHECK(hw->fence_wait_host && hw->device_sync && hw->fill && hw->verify && hw->copy &&
          hw->copy_list);
    CHECK(hw->counters && hw->health && hw->read_slots);
    if (caps->tree_is_ours)
        CHECK(hw->table_alloc && hw->table_free && hw->root_phys);
    else
        CHECK(hw->tree_adopt && hw->tree_disown);
    CHECK_EQ(hw->health(c->dev), MB_OK);
}

enum { RANGES = 100 };

/* Ranges that are held at present. */
struct ranges {
    mb_va va[RANGES];
    uint64_t bytes[RANGES];
    unsigned count;
};

static void reserve_one(struct contract *c, struct ranges *r)
{
    uint64_t align = MB_FRAME_BYTES << mb__rng_below(&c->rng, 10);
    uint64_t bytes = MB_FRAME_BYTES * (1 + mb__rng_below(&c->rng, 600));
    mb_va va = MB_NO_VA;

    CHECK_OK(c->hw->va_reserve(c->dev, bytes, align, &va));
    CHECK_NE(va.addr, 0);
    CHECK_EQ(va.addr % align, 0);
    for (unsigned i = 0; i < r->count; i++)
        CHECK(!overlap(va, bytes, r->va[i], r->bytes[i]));
    r->va[r->count] = va;
    r->bytes[r->count++] = bytes;
}

static void release_one(struct contract *c, struct ranges *r, unsigned i)
{
    CHECK_OK(c->hw->va_release(c->dev, r->va[i], r->bytes[i]));
    r->count--;
    r->va[i] = r->va[r->count];
    r->bytes[i] = r->bytes[r->count];
}

void contract_va_ranges_are_aligned_and_disjoint(struct contract *c)
{
    struct ranges r = {.count = 0};

    for (int step = 0; step < 400; step++) {
        if (r.count < RANGES && (r.count == 0 || mb__rng_below(&c->rng, 5) < 3))
            reserve_one(c, &r);
        else
            release_one(c, &r, (unsigned)mb__rng_below(&c->rng, r.count));
    }
    while (r.count)
        release_one(c, &r, r.count - 1);
}

/* Address space that was given back serves again: many times the whole of it passes through. */
void contract_va_ranges_come_back(struct contract *c)
{
    uint64_t bytes = c->caps->va_bytes / 4 / MB_FRAME_BYTES * MB_FRAME_BYTES;

    for (int i = 0; i < 40; i++) {
        mb_va va = MB_NO_VA;

        CHECK_OK(c->hw->va_reserve(c->dev, bytes, MB_FRAME_BYTES, &va));
        CHECK_OK(c->hw->va_release(c->dev, va, bytes));
    }
}

void contract_va_reserve_refuses_the_impossible(struct contract *c)
{
    mb_va va = {0x1234}, good = MB_NO_VA;
    uint64_t too_much = c->caps->va_bytes / MB_FRAME_BYTES * MB_FRAME_BYTES + MB_FRAME_BYTES;

    CHECK_EQ(c->hw->va_reserve(c->dev, too_much, MB_FRAME_BYTES, &va), MB_ERR_NO_ADDRESS);
    CHECK_EQ(va.addr, 0x1234);
    CHECK(mb_error_detail()[0]);
    CHECK_EQ(c->hw->va_reserve(c->dev, 0, MB_FRAME_BYTES, &va), MB_ERR_INVALID);
    CHECK_EQ(c->hw->va_reserve(c->dev, MB_FRAME_BYTES, 3 * MB_FRAME_BYTES, &va), MB_ERR_INVALID);
    CHECK_EQ(va.addr, 0x1234);
    /* A range that nobody reserved cannot be released, one that was released not twice. */
    CHECK_OK(c->hw->va_reserve(c->dev, MB_FRAME_BYTES, MB_FRAME_BYTES, &good));
    CHECK_OK(c->hw->va_release(c->dev, good, MB_FRAME_BYTES));
    CHECK_NE(c->hw->va_release(c->dev, good, MB_FRAME_BYTES), MB_OK);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

void contract_slabs_are_distinct_and_inside(struct contract *c)
{
    static const unsigned steps[] = {1, 2, 5, 16, 1, 3};
    uint32_t pfns[2048] = {0}, count = 0;

    for (unsigned s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
        uint64_t bytes = c->caps->slab_step_bytes * steps[s];
        struct mb_hw_slab *slab = contract_slab(c, bytes);

        CHECK_EQ(slab->frames * MB_FRAME_BYTES, bytes);
        if (slab->pfns)
            CHECK(mb__pfn_eq(slab->first, slab->pfns[0]));
        for (uint32_t i = 0; i < slab->frames && count < 2048; i++)
            pfns[count++] = contract_slab_pfn(slab, i).n;
    }
    qsort(pfns, count, sizeof(pfns[0]), compare_u32);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(pfns[i] % MB_FRAME_PFNS, 0);
        CHECK((uint64_t)pfns[i] << MB_PFN_SHIFT < mb_fmt_phys_limit(c->caps->format, MB_AP_VID));
        if (i)
            CHECK_NE(pfns[i], pfns[i - 1]);
    }
}

/* What home_mapped says is true: contents written at home are those of the frames, in order. */
void contract_homes_are_as_told(struct contract *c)
{
    struct mb_hw_slab *slab = contract_slab(c, c->caps->slab_step_bytes);
    struct contract_window *w = contract_window(c, slab->frames);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn *pfns = calloc(slab->frames, sizeof(*pfns));

    CHECK(pfns != NULL);
    CHECK_EQ(slab->home_mapped, c->caps->home_by_driver);
    for (uint32_t i = 0; i < slab->frames; i++)
        pfns[i] = contract_slab_pfn(slab, i);
    contract_map(c, s, w, 0, slab->frames, pfns);
    for (uint32_t i = 0; i < slab->frames; i++) {
        mb_va home = mb__va_add(slab->home, i * MB_FRAME_BYTES);

        if (slab->home_mapped)
            CHECK_OK(c->hw->fill(c->dev, s, home, MB_FRAME_BYTES, 100 + i));
        else
            contract_fill(c, s, w, i, MB_FRAME_BYTES, 100 + i);
    }
    for (uint32_t i = 0; i < slab->frames; i++) {
        contract_verify(c, s, w, i, MB_FRAME_BYTES, 100 + i);
        if (slab->home_mapped)
            CHECK_OK(c->hw->verify(c->dev, s, mb__va_add(slab->home, i * MB_FRAME_BYTES),
                                   MB_FRAME_BYTES, 100 + i));
    }
    contract_sync(c);
    free(pfns);
}

static enum mb_err acquire(struct contract *c, uint64_t bytes, struct mb_hw_slab *slab)
{
    mb_va home = MB_NO_VA;
    enum mb_err err;

    CHECK_OK(c->hw->va_reserve(c->dev, bytes, MB_FRAME_BYTES, &home));
    err = c->hw->slab_acquire(c->dev, bytes, home, slab);
    if (err)
        CHECK_OK(c->hw->va_release(c->dev, home, bytes));
    return err;
}

static void release(struct contract *c, struct mb_hw_slab *slab)
{
    uint64_t bytes = slab->frames * MB_FRAME_BYTES;
    mb_va home = slab->home;

    CHECK_OK(c->hw->slab_release(c->dev, slab));
    CHECK_OK(c->hw->va_release(c->dev, home, bytes));
}

void contract_exhaustion_changes_nothing(struct contract *c)
{
    MB_VEC(struct mb_hw_slab) slabs = {0};
    uint64_t step = c->caps->slab_step_bytes, held = 0;
    struct mb_hw_slab slab, before;
    enum mb_err err;

    if (!c->config->hw.device_memory_bytes) {
        contract_cannot(c, "exhaustion_changes_nothing", "the whole device would be taken");
        return;
    }
    memset(&slab, 0x5a, sizeof(slab));
    before = slab;
    while ((err = acquire(c, step, &slab)) == MB_OK) {
        CHECK(MB_VEC_PUSH(&slabs, slab));
        held += step;
        CHECK_LE(held, c->caps->total_bytes);
        memset(&slab, 0x5a, sizeof(slab));
    }
    CHECK_EQ(err, MB_ERR_NO_MEMORY);
    CHECK(mb_error_detail()[0]);
    CHECK_MEM_EQ(&slab, &before, sizeof(slab));
    CHECK(slabs.count > 0);
    /* One back, one out again, no second one. */
    slab = MB_VEC_POP(&slabs);
    release(c, &slab);
    memset(&slab, 0x5a, sizeof(slab));
    CHECK_EQ(acquire(c, 2 * step, &slab), MB_ERR_NO_MEMORY);
    CHECK_MEM_EQ(&slab, &before, sizeof(slab));
    CHECK_OK(acquire(c, step, &slab));
    CHECK(MB_VEC_PUSH(&slabs, slab));
    CHECK_EQ(acquire(c, step, &slab), MB_ERR_NO_MEMORY);
    for (size_t i = 0; i < slabs.count; i++)
        release(c, &slabs.data[i]);
    MB_VEC_FREE(&slabs);
}

/* Taking and giving back for ever needs no more memory than the largest moment. */
void contract_released_frames_come_back(struct contract *c)
{
    uint64_t total = 0, step = c->caps->slab_step_bytes;
    struct mb_hw_slab held[8];
    unsigned count = 0;

    while (total < 2 * c->caps->total_bytes && total < 400 * step) {
        uint64_t bytes = step * (1 + mb__rng_below(&c->rng, 3));

        if (count == 8) {
            unsigned i = (unsigned)mb__rng_below(&c->rng, count);

            release(c, &held[i]);
            held[i] = held[--count];
        }
        CHECK_OK(acquire(c, bytes, &held[count++]));
        total += bytes;
    }
    while (count)
        release(c, &held[--count]);
}

/* A view of table memory itself, so that read_slots shows it. */
static void expect_zero(struct contract *c, uint64_t phys, uint64_t bytes)
{
    struct mb_hw_view view = {
        .bytes = bytes / 8 << 12, .leaf_shift = 12, .slot_bytes = 8, .table = phys};
    uint32_t count = (uint32_t)(bytes / 8);
    struct mb_pte *ptes = calloc(count, sizeof(*ptes));

    CHECK(ptes != NULL);
    memset(ptes, 0xff, count * sizeof(*ptes));
    CHECK_OK(c->hw->read_slots(c->dev, &view, 0, count, ptes));
    for (uint32_t i = 0; i < count; i++)
        CHECK(ptes[i].lo == 0 && ptes[i].hi == 0);
    free(ptes);
}

void contract_table_memory_is_zeroed_and_apart(struct contract *c)
{
    enum { TABLES = 20 };
    uint64_t phys[TABLES], bytes[TABLES];
    uint64_t table_bytes = contract_counters(c).table_bytes, sum = 0;

    if (!c->caps->tree_is_ours) {
        contract_cannot(c, "table_memory_is_zeroed_and_apart", "the backend keeps its own tree");
        return;
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < TABLES; i++) {
            bytes[i] = 4096 * (1 + mb__rng_below(&c->rng, 8));
            phys[i] = 0;
            CHECK_OK(c->hw->table_alloc(c->dev, bytes[i], &phys[i]));
            CHECK_EQ(phys[i] % 4096, 0);
            sum += bytes[i];
            expect_zero(c, phys[i], bytes[i]);
            for (int k = 0; k < i; k++)
                CHECK(!overlap(mb__va(phys[i]), bytes[i], mb__va(phys[k]), bytes[k]));
            CHECK(!overlap(mb__va(phys[i]), bytes[i], mb__va(c->hw->root_phys(c->dev)), 4096));
        }
        CHECK(contract_counters(c).table_bytes >= table_bytes + sum);
        for (int i = 0; i < TABLES; i++) {
            /* Dirty it, so that the next round would see it. */
            struct mb_hw_cmd cmd = contract_cmd(MB_HW_DIR);
            unsigned last = c->geometry.levels - 1;

            cmd.dir.table_phys = phys[i];
            cmd.dir.level = last;
            cmd.dir.value = mb_fmt_sparse_leaf(c->caps->format, MB_FRAME_SHIFT);
            CHECK_OK(c->hw->submit(c->dev, c->setup, &cmd, 1));
            contract_wait_host(c, contract_fence(c, c->setup));
            c->hw->table_free(c->dev, phys[i], bytes[i]);
        }
        sum = 0;
    }
}
