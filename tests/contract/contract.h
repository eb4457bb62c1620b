/* SPDX-License-Identifier: MIT */
/*
 * contract.h - what every backend promises, as a list of rules that any of them can be run through.
 *
 * Rules use src/hw/hw.h and kernels/formats.h only. A rule gets an open device with helpers around
 * it (struct contract) and checks with the macros of tests/test.h. The helpers play vm's part: they
 * build the page-table tree where caps.tree_is_ours, adopt ranges elsewhere, tell intend() what
 * they are about to do, and add the barriers and invalidates that vm would add.
 *
 * LOCKING  A struct contract belongs to one thread, except where a function says otherwise.
 */
#ifndef MB_TESTS_CONTRACT_H
#define MB_TESTS_CONTRACT_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/vec.h"
#include "hw/hw.h"
#include "test.h"

enum {
    CONTRACT_WORDS = (int)(MB_FRAME_BYTES / 8), /* of a frame */
};

/* One way to open one backend. */
struct contract_config {
    const char *backend; /* name of a row of mb__hw_backends */
    const char *name;    /* for messages */
    struct mb_hw_config hw;
    bool may_fault; /* a fault ends only this device, so rules may cause one */
    void (*prepare)(struct mb_hw_dev *dev); /* after open; NULL: nothing */
};

/* A mapped range that the helpers look after. */
struct contract_window {
    struct mb_hw_view view;
    mb_va reserved;          /* start of the reserved range; view.va lies in it */
    uint64_t reserved_bytes; /* its size; 0: small leaves inside another window's range */
    uint32_t slots;          /* usable slots, from view.va on */
    uint64_t leaf_tables;    /* phys of what the helpers allocated for it; 0: adopted */
    uint64_t leaf_table_bytes;
};

/* One pointer from a directory to a table, both made by the helpers. */
struct contract_link {
    uint64_t parent_phys, child_phys, child_bytes;
    uint32_t index;
    unsigned level; /* of the parent */
};

struct contract {
    const struct contract_config *config;
    struct mb_hw_dev *dev;
    const struct mb_hw_ops *hw;      /* dev->ops */
    const struct mb_hw_caps *caps;   /* &dev->caps */
    struct mb_fmt_geometry geometry; /* of caps->format */
    struct mb_rng rng;
    struct mb_hw_stream *setup; /* used by the helpers */
    MB_VEC(struct contract_window *) windows;
    MB_VEC(struct mb_hw_slab) slabs;
    MB_VEC(mb_stream) natives;
    MB_VEC(struct mb_hw_stream *) streams;
    MB_VEC(struct contract_link) links;
    struct mb_map tables;         /* level and address prefix -> phys of the table */
    struct mb_hw_counters before; /* at open */
    bool lost;                    /* a rule has ended the context on purpose */
};

typedef void (*contract_rule)(struct contract *c);

/* Every rule; each is a function contract_<name>. */
#define CONTRACT_RULES(X)                                                                          \
    X(caps_are_consistent)                                                                         \
    X(va_ranges_are_aligned_and_disjoint)                                                          \
    X(va_ranges_come_back)                                                                         \
    X(va_reserve_refuses_the_impossible)                                                           \
    X(slabs_are_distinct_and_inside)                                                               \
    X(homes_are_as_told)                                                                           \
    X(exhaustion_changes_nothing)                                                                  \
    X(released_frames_come_back)                                                                   \
    X(table_memory_is_zeroed_and_apart)                                                            \
    X(scattered_frames_map)                                                                        \
    X(verify_counts_every_wrong_word)                                                              \
    X(a_batch_of_many_runs_shows_all_of_them)                                                      \
    X(copies_go_through_mappings)                                                                  \
    X(lists_of_copies_are_made_whole)                                                              \
    X(an_alias_shows_the_same_memory)                                                              \
    X(a_remap_shows_the_new_frame)                                                                 \
    X(old_accesses_land_before_a_membar_ends)                                                      \
    X(neighbours_of_a_remap_stay)                                                                  \
    X(unmapping_clears)                                                                            \
    X(large_batches)                                                                               \
    X(one_batch_many_commands)                                                                     \
    X(small_leaves)                                                                                \
    X(windows_come_and_go)                                                                         \
    X(streams_have_one_wrapper)                                                                    \
    X(batches_keep_their_order)                                                                    \
    X(a_wait_orders_streams)                                                                       \
    X(submit_never_blocks)                                                                         \
    X(fences_are_monotonic)                                                                        \
    X(fences_outlive_their_stream)                                                                 \
    X(streams_that_wait_for_each_other_go_on)                                                      \
    X(a_bad_batch_changes_nothing)                                                                 \
    X(counters_only_grow)                                                                          \
    X(intend_is_checked)                                                                           \
    X(threads_share_a_device)                                                                      \
    X(random_programs_agree_with_a_model)                                                          \
    X(an_unmapped_access_faults)                                                                   \
    X(a_read_only_mapping_is_not_written)                                                          \
    X(close_takes_everything_back)

#define CONTRACT_DECLARE(name) void contract_##name(struct contract *c);
CONTRACT_RULES(CONTRACT_DECLARE)
#undef CONTRACT_DECLARE

/* Opens each configuration anew, runs the rule, checks that nothing was wrong that the rule did not
 * cause itself, and closes. Skips the case when no configuration can be opened. */
void contract_run(const struct contract_config *configs, unsigned count, contract_rule rule);
/* A rule that this configuration cannot be held to; the run prints «SKIP: ...», one line for all
 * configurations of a rule. Returns false. `rule` and `why` live as long as the process. */
bool contract_cannot(const struct contract *c, const char *rule, const char *why);

/* ------------------------------------------------------------ helpers */

/* A stream of its own. */
struct mb_hw_stream *contract_stream(struct contract *c);
/* `count` frames in random order into pfns[], from slabs of the smallest size, homes apart. */
void contract_frames(struct contract *c, mb_pfn *pfns, uint32_t count);
/* One slab of `bytes`, with a home. */
struct mb_hw_slab *contract_slab(struct contract *c, uint64_t bytes);
/* pfn of frame i of a slab. */
mb_pfn contract_slab_pfn(const struct mb_hw_slab *slab, uint32_t i);
/* A window of at least `slots` cleared slots of 2 MiB. The pointer is valid until the contract
 * ends. */
struct contract_window *contract_window(struct contract *c, uint32_t slots);
/* The same of smaller leaves (12, or 16 on GMMU) over `frames` 2 MiB pieces; only tree_is_ours. */
struct contract_window *contract_small_window(struct contract *c, unsigned leaf_shift,
                                              uint32_t frames);
/* Unmaps, drops tables, disowns, gives the range back, with the small windows in it. Waits. Not for
 * a small window itself. */
void contract_drop_window(struct contract *c, struct contract_window *w);

mb_va contract_va(const struct contract_window *w, uint32_t slot);
uint64_t contract_template(const struct contract *c, const struct contract_window *w,
                           bool writable);
/* LEAVES of one range; pfns NULL clears. */
struct mb_hw_cmd contract_leaves(const struct contract *c, const struct contract_window *w,
                                 uint32_t first, uint32_t count, const mb_pfn *pfns, bool writable);
struct mb_hw_cmd contract_cmd(enum mb_hw_cmd_kind kind);
struct mb_hw_cmd contract_invalidate(const struct contract_window *w, uint32_t first,
                                     uint32_t count);
struct mb_hw_cmd contract_wait(struct mb_hw_fence fence);
/* Tells the backend's oracle, if it has one. Thread-safe. */
void contract_intend(struct contract *c, const struct contract_window *w, uint32_t first,
                     uint32_t count, const mb_pfn *pfns);
/* intend, then LEAVES, BARRIER, INVALIDATE, MEMBAR as one batch. Thread-safe. */
enum mb_err contract_try_map(struct contract *c, struct mb_hw_stream *stream,
                             const struct contract_window *w, uint32_t first, uint32_t count,
                             const mb_pfn *pfns, bool writable);
void contract_map(struct contract *c, struct mb_hw_stream *stream, const struct contract_window *w,
                  uint32_t first, uint32_t count, const mb_pfn *pfns);
void contract_fill(struct contract *c, struct mb_hw_stream *stream, const struct contract_window *w,
                   uint32_t slot, uint64_t bytes, uint64_t seed);
void contract_verify(struct contract *c, struct mb_hw_stream *stream,
                     const struct contract_window *w, uint32_t slot, uint64_t bytes, uint64_t seed);
struct mb_hw_fence contract_fence(struct contract *c, struct mb_hw_stream *stream);
void contract_wait_host(struct contract *c, struct mb_hw_fence fence);
/* device_sync; then no word, access or fault may have been wrong since `before`. */
void contract_sync(struct contract *c);
struct mb_hw_counters contract_counters(struct contract *c);
/* Slots first.. hold exactly these frames (NULL: cleared), as the entry format says it. Waits. */
void contract_expect_slots(struct contract *c, const struct contract_window *w, uint32_t first,
                           uint32_t count, const mb_pfn *pfns, bool writable);

/* contract_tree.c: directories down to the last level for [va, va + bytes), whose tables of the
 * last level lie one after the other from *leaf_tables on. */
void contract_build(struct contract *c, mb_va va, uint64_t bytes, uint64_t *leaf_tables,
                    uint64_t *leaf_table_bytes);
/* Takes the pointers to [phys, phys + bytes) out of their directories and frees it. Waits. */
void contract_unlink(struct contract *c, uint64_t phys, uint64_t bytes);
/* The same for all that is left. */
void contract_unlink_all(struct contract *c);

#endif
