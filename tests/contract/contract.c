/* SPDX-License-Identifier: MIT */
/* The life of a device under test, and the helpers that the rules share. */
#include "contract.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PIECE_BYTES ((uint64_t)512 << 20) /* what tree_adopt wants its ranges aligned to */

enum { REASON_MAX = 1024 }; /* bytes of why a configuration cannot be opened */

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* ------------------------------------------------------------ open, run, close */

static const struct mb_hw_backend *find_backend(const char *name)
{
    for (unsigned i = 0; i < mb__hw_backend_count; i++)
        if (strcmp(mb__hw_backends[i].name, name) == 0)
            return &mb__hw_backends[i];
    return NULL;
}

/* false, with the reason in `why`: this machine or build cannot do it. Anything else fails the
 * case. */
static bool open_config(const struct contract_config *config, uint64_t seed, struct contract *c,
                        char *why, size_t size)
{
    const struct mb_hw_backend *backend = find_backend(config->backend);
    struct mb_hw_config hw = config->hw;
    struct mb_backend_info info = {0};
    enum mb_err err;

    if (!backend) {
        snprintf(why, size, "%s: this build has no backend %s", config->name, config->backend);
        return false;
    }
    backend->describe(hw.ordinal, &info);
    if (!info.available) {
        snprintf(why, size, "%s: %s", config->name, info.reason);
        return false;
    }
    hw.seed = seed;
    memset(c, 0, sizeof(*c));
    err = backend->open(&hw, &c->dev);
    if (err == MB_ERR_NOT_SUPPORTED || err == MB_ERR_PERMISSION) {
        snprintf(why, size, "%s: %s", config->name, mb_error_detail());
        return false;
    }
    if (err)
        FAIL("%s: open: %s: %s", config->name, mb_error_name(err), mb_error_detail());
    if (config->prepare)
        config->prepare(c->dev);
    c->config = config;
    c->hw = c->dev->ops;
    c->caps = &c->dev->caps;
    c->geometry = mb_fmt_geometry(c->caps->format);
    mb__rng_seed(&c->rng, seed);
    CHECK_OK(c->hw->stream_open(c->dev, NULL, &c->setup));
    c->before = contract_counters(c);
    return true;
}

static void free_lists(struct contract *c)
{
    for (size_t i = 0; i < c->windows.count; i++)
        free(c->windows.data[i]);
    MB_VEC_FREE(&c->windows);
    MB_VEC_FREE(&c->slabs);
    MB_VEC_FREE(&c->natives);
    MB_VEC_FREE(&c->streams);
    MB_VEC_FREE(&c->links);
    mb__map_free(&c->tables);
}

/* Gives everything back piece by piece, as vm does; a lost device only wants close(). */
static void give_back(struct contract *c)
{
    contract_sync(c);
    for (size_t i = 0; i < c->windows.count;) {
        if (c->windows.data[i]->reserved_bytes) {
            contract_drop_window(c, c->windows.data[i]);
            i = 0;
        } else {
            i++; /* small leaves: goes with the window around it */
        }
    }
    if (c->caps->tree_is_ours)
        contract_unlink_all(c);
    for (size_t i = 0; i < c->slabs.count; i++) {
        struct mb_hw_slab *slab = &c->slabs.data[i];
        uint64_t bytes = slab->frames * MB_FRAME_BYTES;
        mb_va home = slab->home;

        CHECK_OK(c->hw->slab_release(c->dev, slab));
        CHECK_OK(c->hw->va_release(c->dev, home, bytes));
    }
    for (size_t i = 0; i < c->streams.count; i++)
        c->hw->stream_close(c->dev, c->streams.data[i]);
    for (size_t i = 0; i < c->natives.count; i++)
        CHECK_OK(c->hw->stream_destroy(c->dev, c->natives.data[i]));
    contract_sync(c);
    CHECK_EQ(c->hw->health(c->dev), MB_OK);
}

/* What the rule at work was not held to, by how many configurations; told when it is through. The
 * main thread's. */
static struct {
    const char *rule, *config, *why; /* of the latest */
    unsigned count;
} cannot;

static void tell_cannot(unsigned configs)
{
    if (cannot.count == 1)
        printf("SKIP: %s: %s: %s\n", cannot.rule, cannot.config, cannot.why);
    else if (cannot.count)
        printf("SKIP: %s: %s (%u of %u configurations)\n", cannot.rule, cannot.why, cannot.count,
               configs);
}

/* What cannot be opened is told once, not for each rule. */
static void tell_once(const char *why)
{
    static char told[REASON_MAX];

    if (!strcmp(told, why))
        return;
    snprintf(told, sizeof(told), "%s", why);
    printf("SKIP: contract: %s\n", why);
}

void contract_run(const struct contract_config *configs, unsigned count, contract_rule rule)
{
    uint64_t state = mb_test_seed();
    char why[REASON_MAX] = ""; /* of all that cannot be opened, "; " behind each */
    size_t used = 0;
    unsigned ran = 0;

    cannot.count = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t seed = mb_test_random(&state);
        struct contract c;

        if (!open_config(&configs[i], seed, &c, why + used, sizeof(why) - used)) {
            used = strlen(why);
            used += (size_t)snprintf(why + used, sizeof(why) - used, "; ");
            if (used >= sizeof(why))
                used = sizeof(why) - 1;
            continue;
        }
        ran++;
        printf("  %s, seed 0x%" PRIx64 "\n", configs[i].name, seed);
        fflush(stdout);
        rule(&c);
        if (c.dev) {
            if (!c.lost)
                give_back(&c);
            c.hw->close(c.dev);
        }
        free_lists(&c);
    }
    tell_cannot(count);
    if (used >= 2)
        why[used - 2] = '\0';
    if (!ran)
        SKIP(why);
    if (used)
        tell_once(why);
}

bool contract_cannot(const struct contract *c, const char *rule, const char *why)
{
    cannot.rule = rule;
    cannot.config = c->config->name;
    cannot.why = why;
    cannot.count++;
    return false;
}

/* ------------------------------------------------------------ observation */

struct mb_hw_counters contract_counters(struct contract *c)
{
    struct mb_hw_counters counters;

    memset(&counters, 0, sizeof(counters));
    c->hw->counters(c->dev, &counters);
    return counters;
}

void contract_sync(struct contract *c)
{
    enum mb_err err = c->hw->device_sync(c->dev);
    struct mb_hw_counters now = contract_counters(c);

    if (err)
        FAIL("device_sync: %s: %s", mb_error_name(err), mb_error_detail());
    CHECK_EQ(now.wrong_accesses, c->before.wrong_accesses);
    CHECK_EQ(now.faults, c->before.faults);
    CHECK_EQ(now.wrong_words, c->before.wrong_words);
}

struct mb_hw_fence contract_fence(struct contract *c, struct mb_hw_stream *stream)
{
    struct mb_hw_fence fence = {0};

    CHECK_OK(c->hw->fence_record(c->dev, stream, &fence));
    return fence;
}

void contract_wait_host(struct contract *c, struct mb_hw_fence fence)
{
    enum mb_err err = c->hw->fence_wait_host(c->dev, fence, 0);

    if (err)
        FAIL("fence_wait_host: %s: %s", mb_error_name(err), mb_error_detail());
    CHECK(c->hw->fence_done(c->dev, fence));
}

/* ------------------------------------------------------------ streams, frames */

struct mb_hw_stream *contract_stream(struct contract *c)
{
    struct mb_hw_stream *stream = NULL;
    mb_stream native = NULL;

    CHECK_OK(c->hw->stream_create(c->dev, &native));
    CHECK_OK(c->hw->stream_open(c->dev, native, &stream));
    CHECK(MB_VEC_PUSH(&c->natives, native));
    CHECK(MB_VEC_PUSH(&c->streams, stream));
    return stream;
}

struct mb_hw_slab *contract_slab(struct contract *c, uint64_t bytes)
{
    struct mb_hw_slab slab;
    mb_va home = MB_NO_VA;
    enum mb_err err;

    memset(&slab, 0, sizeof(slab));
    CHECK_OK(c->hw->va_reserve(c->dev, bytes, MB_FRAME_BYTES, &home));
    err = c->hw->slab_acquire(c->dev, bytes, home, &slab);
    if (err)
        FAIL("slab_acquire of %" PRIu64 " bytes: %s: %s", bytes, mb_error_name(err),
             mb_error_detail());
    CHECK_EQ(slab.home.addr, home.addr);
    CHECK(MB_VEC_PUSH(&c->slabs, slab));
    return &c->slabs.data[c->slabs.count - 1];
}

mb_pfn contract_slab_pfn(const struct mb_hw_slab *slab, uint32_t i)
{
    if (slab->pfns)
        return slab->pfns[i];
    return (mb_pfn){slab->first.n + i * MB_FRAME_PFNS};
}

void contract_frames(struct contract *c, mb_pfn *pfns, uint32_t count)
{
    uint32_t have = 0;

    while (have < count) {
        struct mb_hw_slab *slab = contract_slab(c, c->caps->slab_step_bytes);

        for (uint32_t i = 0; i < slab->frames && have < count; i++)
            pfns[have++] = contract_slab_pfn(slab, i);
    }
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = (uint32_t)mb__rng_below(&c->rng, i);
        mb_pfn t = pfns[i - 1];

        pfns[i - 1] = pfns[k];
        pfns[k] = t;
    }
}

/* ------------------------------------------------------------ windows */

static struct contract_window *reserve_window(struct contract *c, uint64_t bytes)
{
    struct contract_window *w = calloc(1, sizeof(*w));
    uint64_t align = PIECE_BYTES;

    CHECK(w != NULL);
    CHECK(MB_VEC_PUSH(&c->windows, w));
    /* Where the tree is ours, ranges are whole tables of the last level. */
    if (c->caps->tree_is_ours)
        align = (uint64_t)1 << c->geometry.level[c->geometry.levels - 2].shift;
    w->reserved_bytes = round_up(bytes, align);
    CHECK_OK(c->hw->va_reserve(c->dev, w->reserved_bytes, align, &w->reserved));
    CHECK_EQ(w->reserved.addr % align, 0);
    return w;
}

/* Cleared slots, visible to all streams. */
static void clear_all(struct contract *c, const struct contract_window *w)
{
    contract_map(c, c->setup, w, 0, w->slots, NULL);
    contract_wait_host(c, contract_fence(c, c->setup));
}

struct contract_window *contract_window(struct contract *c, uint32_t slots)
{
    struct contract_window *w = reserve_window(c, slots * MB_FRAME_BYTES);
    struct mb_hw_view *view = &w->view;

    w->slots = (uint32_t)(w->reserved_bytes / MB_FRAME_BYTES);
    if (c->caps->tree_is_ours) {
        contract_build(c, w->reserved, w->reserved_bytes, &w->leaf_tables, &w->leaf_table_bytes);
        view->va = w->reserved;
        view->bytes = w->reserved_bytes;
        view->leaf_shift = MB_FRAME_SHIFT;
        view->slot_bytes = mb_fmt_slot_bytes(c->caps->format, MB_FRAME_SHIFT);
        view->table = w->leaf_tables;
        view->clear_pfn = MB_NO_PFN;
        clear_all(c, w);
    } else {
        CHECK_OK(c->hw->tree_adopt(c->dev, w->reserved, w->reserved_bytes, view));
        CHECK_EQ(view->va.addr, w->reserved.addr);
        CHECK_EQ(view->bytes, w->reserved_bytes);
        CHECK_EQ(view->leaf_shift, MB_FRAME_SHIFT);
        CHECK_EQ(view->slot_bytes, mb_fmt_slot_bytes(c->caps->format, MB_FRAME_SHIFT));
    }
    return w;
}

/* Points the slots of the last directory to tables of small leaves. */
static void link_small_tables(struct contract *c, const struct contract_window *big,
                              const struct contract_window *small, uint32_t frames,
                              uint64_t table_bytes)
{
    unsigned last = c->geometry.levels - 1;
    bool is_big = small->view.leaf_shift == 16;
    struct mb_hw_cmd cmd;

    for (uint32_t i = 0; i < frames; i++) {
        uint64_t phys = small->view.table + i * table_bytes;
        struct mb_dir dir = {.valid = !is_big, .valid_big = is_big, .aperture = MB_AP_VID};

        if (is_big)
            dir.table_phys_big = phys;
        else
            dir.table_phys = phys;
        cmd = contract_cmd(MB_HW_DIR);
        cmd.dir.table_phys = big->leaf_tables;
        cmd.dir.index = i;
        cmd.dir.level = last;
        cmd.dir.value = mb_fmt_encode_dir(c->caps->format, last, &dir);
        CHECK_OK(c->hw->submit(c->dev, c->setup, &cmd, 1));
    }
    struct mb_hw_cmd end[] = {contract_cmd(MB_HW_BARRIER), contract_invalidate(big, 0, frames)};
    CHECK_OK(c->hw->submit(c->dev, c->setup, end, 2));
    contract_wait_host(c, contract_fence(c, c->setup));
}

struct contract_window *contract_small_window(struct contract *c, unsigned leaf_shift,
                                              uint32_t frames)
{
    struct contract_window *big = contract_window(c, frames);
    struct contract_window *small = calloc(1, sizeof(*small));
    const struct mb_fmt_level *level =
        leaf_shift == 16 ? &c->geometry.leaf_64k : &c->geometry.leaf_4k;

    CHECK(small != NULL);
    CHECK(MB_VEC_PUSH(&c->windows, small));
    small->leaf_table_bytes = round_up((uint64_t)level->table_bytes * frames, 4096);
    CHECK_OK(c->hw->table_alloc(c->dev, small->leaf_table_bytes, &small->leaf_tables));
    small->view.va = big->view.va;
    small->view.bytes = frames * MB_FRAME_BYTES;
    small->view.leaf_shift = leaf_shift;
    small->view.slot_bytes = level->entry_bytes;
    small->view.table = small->leaf_tables;
    small->view.clear_pfn = MB_NO_PFN;
    small->slots = frames << level->bits;
    clear_all(c, small);
    link_small_tables(c, big, small, frames, level->table_bytes);
    return small;
}

static void forget_window(struct contract *c, struct contract_window *w)
{
    for (size_t i = 0; i < c->windows.count; i++) {
        if (c->windows.data[i] != w)
            continue;
        MB_VEC_SWAP_REMOVE(&c->windows, i);
        break;
    }
    free(w);
}

/* Windows of small leaves lie inside a big one, and no slot of it points to their tables any more.
 */
static void drop_small_windows(struct contract *c, const struct contract_window *big)
{
    for (size_t i = 0; i < c->windows.count;) {
        struct contract_window *w = c->windows.data[i];

        if (w == big || w->reserved_bytes || w->view.va.addr != big->view.va.addr) {
            i++;
            continue;
        }
        c->hw->table_free(c->dev, w->leaf_tables, w->leaf_table_bytes);
        MB_VEC_SWAP_REMOVE(&c->windows, i);
        free(w);
    }
}

void contract_drop_window(struct contract *c, struct contract_window *w)
{
    clear_all(c, w);
    drop_small_windows(c, w);
    if (w->leaf_tables)
        contract_unlink(c, w->leaf_tables, w->leaf_table_bytes);
    else
        c->hw->tree_disown(c->dev, &w->view);
    CHECK_OK(c->hw->va_release(c->dev, w->reserved, w->reserved_bytes));
    forget_window(c, w);
}

/* ------------------------------------------------------------ commands */

mb_va contract_va(const struct contract_window *w, uint32_t slot)
{
    return mb__va_add(w->view.va, (uint64_t)slot << w->view.leaf_shift);
}

uint64_t contract_template(const struct contract *c, const struct contract_window *w, bool writable)
{
    return mb_fmt_leaf_template(c->caps->format, w->view.leaf_shift,
                                mb_fmt_user_flags(c->caps->format, writable), MB_AP_VID,
                                c->caps->kind);
}

struct mb_hw_cmd contract_cmd(enum mb_hw_cmd_kind kind)
{
    struct mb_hw_cmd cmd;

    memset(&cmd, 0, sizeof(cmd));
    cmd.kind = kind;
    return cmd;
}

struct mb_hw_cmd contract_leaves(const struct contract *c, const struct contract_window *w,
                                 uint32_t first, uint32_t count, const mb_pfn *pfns, bool writable)
{
    struct mb_hw_cmd cmd = contract_cmd(MB_HW_LEAVES);

    cmd.leaves.view = &w->view;
    cmd.leaves.first = first;
    cmd.leaves.count = count;
    cmd.leaves.pfns = pfns;
    cmd.leaves.tmpl = pfns ? contract_template(c, w, writable) : 0;
    return cmd;
}

struct mb_hw_cmd contract_invalidate(const struct contract_window *w, uint32_t first,
                                     uint32_t count)
{
    struct mb_hw_cmd cmd = contract_cmd(MB_HW_INVALIDATE);

    cmd.inval.va = contract_va(w, first);
    cmd.inval.bytes = (uint64_t)count << w->view.leaf_shift;
    return cmd;
}

struct mb_hw_cmd contract_wait(struct mb_hw_fence fence)
{
    struct mb_hw_cmd cmd = contract_cmd(MB_HW_WAIT);

    cmd.fence = fence;
    return cmd;
}

void contract_intend(struct contract *c, const struct contract_window *w, uint32_t first,
                     uint32_t count, const mb_pfn *pfns)
{
    if (c->hw->intend)
        c->hw->intend(c->dev, contract_va(w, first), count, w->view.leaf_shift, pfns);
}

enum mb_err contract_try_map(struct contract *c, struct mb_hw_stream *stream,
                             const struct contract_window *w, uint32_t first, uint32_t count,
                             const mb_pfn *pfns, bool writable)
{
    struct mb_hw_cmd cmds[] = {
        contract_leaves(c, w, first, count, pfns, writable),
        contract_cmd(MB_HW_BARRIER),
        contract_invalidate(w, first, count),
        contract_cmd(MB_HW_MEMBAR),
    };

    contract_intend(c, w, first, count, pfns);
    return c->hw->submit(c->dev, stream, cmds, 4);
}

void contract_map(struct contract *c, struct mb_hw_stream *stream, const struct contract_window *w,
                  uint32_t first, uint32_t count, const mb_pfn *pfns)
{
    enum mb_err err = contract_try_map(c, stream, w, first, count, pfns, true);

    if (err)
        FAIL("submit: %s: %s", mb_error_name(err), mb_error_detail());
}

void contract_fill(struct contract *c, struct mb_hw_stream *stream, const struct contract_window *w,
                   uint32_t slot, uint64_t bytes, uint64_t seed)
{
    CHECK_OK(c->hw->fill(c->dev, stream, contract_va(w, slot), bytes, seed));
}

void contract_verify(struct contract *c, struct mb_hw_stream *stream,
                     const struct contract_window *w, uint32_t slot, uint64_t bytes, uint64_t seed)
{
    CHECK_OK(c->hw->verify(c->dev, stream, contract_va(w, slot), bytes, seed));
}

static struct mb_pte cleared_pte(const struct contract *c, const struct contract_window *w)
{
    const struct mb_hw_view *view = &w->view;

    if (mb__pfn_eq(view->clear_pfn, MB_NO_PFN))
        return mb_fmt_invalid_leaf(c->caps->format, view->leaf_shift);
    return mb_fmt_leaf_at(c->caps->format, view->leaf_shift, contract_template(c, w, true),
                          view->clear_pfn.n);
}

void contract_expect_slots(struct contract *c, const struct contract_window *w, uint32_t first,
                           uint32_t count, const mb_pfn *pfns, bool writable)
{
    struct mb_pte *ptes = calloc(count, sizeof(*ptes)), want = cleared_pte(c, w);
    uint64_t tmpl = contract_template(c, w, writable);

    CHECK(ptes != NULL);
    CHECK_OK(c->hw->device_sync(c->dev));
    CHECK_OK(c->hw->read_slots(c->dev, &w->view, first, count, ptes));
    for (uint32_t i = 0; i < count; i++) {
        struct mb_leaf leaf;

        if (pfns)
            want = mb_fmt_leaf_at(c->caps->format, w->view.leaf_shift, tmpl, pfns[i].n);
        CHECK(mb_fmt_decode_leaf(c->caps->format, w->view.leaf_shift, ptes[i], &leaf));
        /* A donor's entry is the driver's own; what counts is the frame it names. */
        if (!pfns && !mb__pfn_eq(w->view.clear_pfn, MB_NO_PFN)) {
            CHECK_EQ(leaf.phys, mb__phys_of_pfn(w->view.clear_pfn));
            continue;
        }
        CHECK_EQ(ptes[i].lo, want.lo);
        CHECK_EQ(ptes[i].hi, want.hi);
        if (pfns) {
            CHECK_EQ(leaf.phys, mb__phys_of_pfn(pfns[i]));
            CHECK_EQ(leaf.flags, mb_fmt_user_flags(c->caps->format, writable));
        }
    }
    free(ptes);
}
