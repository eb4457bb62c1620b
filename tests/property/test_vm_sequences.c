/* SPDX-License-Identifier: MIT */
/*
 * Random sequences of vm calls over several streams, against a naive model.
 *
 * An operation is a few random numbers that are read against the state at that moment, so any part
 * of a sequence is a sequence, which makes shrinking simple: on a failure operations are removed as
 * long as it stays, and the rest is printed.
 *
 * The model knows which frames are owned, what each window slot shows, and what was last written to
 * a frame. It orders its device work as a correct program does: whoever uses a frame or a window on
 * another stream than the last user waits for that one first. After every step the vm's own checks
 * run; at the end the device's tables are compared, and the software GPU must have seen nothing
 * wrong.
 */
#include "property/test_vm_model.h"

static bool open_rig(struct model *m, const struct setting *set, uint64_t seed)
{
    struct mb_hw_config hw = {.device_memory_bytes = FRAMES((uint64_t)DEVICE_FRAMES),
                              .seed = seed,
                              .model = set->model,
                              .tables = set->tables,
                              .explore = true,
                              .driver_home = set->driver_home,
                              .walk_ahead = set->walk_ahead};
    struct mb_vm_config vm = {.policy = set->policy,
                              .deferred = set->deferred,
                              .no_guard = set->no_guard,
                              .home_bytes = 2048 * MIB,
                              .ring_bytes = 1024 * MIB,
                              .max_run_bytes = 64 * MIB};

    MUST(m, mb__sim_open(&hw, &m->rig.hw));
    mb__sim_set_scatter(m->rig.hw, seed & 1);
    MUST(m, mb__vm_open(m->rig.hw, &vm, &m->rig.vm));
    rig_streams(&m->rig, STREAMS);
    return true;
}

/* What all sequences so far did, to see that they do something. */
static struct {
    uint64_t sequences, batches, entries, invalidates, epochs, judged;
} work;

static void count_work(const struct model *m)
{
    struct mb_sim_counters sim;
    struct mb_vm_stats stats;

    mb__vm_stats(m->rig.vm, &stats);
    mb__sim_counters(m->rig.hw, &sim);
    work.sequences++;
    work.batches += stats.map_batches + stats.unmap_batches;
    work.entries += stats.entries_written;
    work.invalidates += stats.invalidates;
    work.epochs += stats.epochs;
    work.judged += sim.accesses;
}

/* NULL: all right. Else the failure's text (static); *at is the step. */
static const char *run_sequence(const struct setting *set, uint64_t seed, const struct step *steps,
                                size_t count, size_t *at)
{
    static char failure[600];
    struct model *m = calloc(1, sizeof(*m));
    bool good;

    CHECK(m);
    good = open_rig(m, set, seed);
    for (*at = 0; good && *at < count; ++*at)
        good = do_step(m, &steps[*at]) && compare(m) && judge(m);
    if (good)
        good = do_drain(m) && compare(m) && judge(m);
    if (good && (m->rig.hw->ops->device_sync(m->rig.hw) || mb__vm_check_tables(m->rig.vm)))
        good = WRONG(m, "tables: %s", mb_error_detail());
    count_work(m);
    rig_close(&m->rig);
    snprintf(failure, sizeof(failure), "%s", m->failure);
    free(m);
    return good ? NULL : failure;
}

/* Removes what the failure does not need. */
static size_t shrink(const struct setting *set, uint64_t seed, struct step *steps, size_t count)
{
    struct step *less = malloc((count + 1) * sizeof(*less));
    size_t at;

    CHECK(less);
    for (size_t chunk = count / 2; chunk; chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
        for (size_t from = 0; from + chunk <= count;) {
            memcpy(less, steps, from * sizeof(*steps));
            memcpy(less + from, steps + from + chunk, (count - from - chunk) * sizeof(*steps));
            if (run_sequence(set, seed, less, count - chunk, &at)) {
                count -= chunk;
                memcpy(steps, less, count * sizeof(*steps));
            } else {
                from += chunk;
            }
        }
    }
    free(less);
    return count;
}

static void report(const struct setting *set, uint64_t seed, struct step *steps, size_t count)
{
    size_t at;
    const char *failure;

    count = shrink(set, seed, steps, count);
    failure = run_sequence(set, seed, steps, count, &at);
    printf(
        "model %s, tables %s, policy %d, driver_home %d, deferred %d, walk_ahead %d, no_guard %d, "
        "device seed %#llx\n",
        set->model, set->tables, (int)set->policy, set->driver_home, set->deferred, set->walk_ahead,
        set->no_guard, (unsigned long long)seed);
    for (size_t i = 0; i < count; i++)
        printf("  %s a=%u b=%u c=%u stream=%u\n", step_kinds[steps[i].kind].name, steps[i].a,
               steps[i].b, steps[i].c, steps[i].stream);
    FAIL("after step %zu: %s", at, failure ? failure : "gone while shrinking (timing of threads?)");
}

static enum step_kind some_kind(struct mb_rng *rng)
{
    unsigned sum = 0, kind = 0;
    uint64_t at;

    for (unsigned i = 0; i < STEP_KINDS; i++)
        sum += step_kinds[i].weight;
    at = mb__rng_below(rng, sum);
    while (at >= step_kinds[kind].weight)
        at -= step_kinds[kind++].weight;
    return (enum step_kind)kind;
}

static void make_steps(struct mb_rng *rng, struct step *steps)
{
    for (size_t i = 0; i < STEPS; i++) {
        /* The beginning builds something up. */
        enum step_kind kind = i < 4 ? (i & 1 ? ALLOC_VA : ALLOC) : some_kind(rng);

        steps[i] =
            (struct step){kind, (uint32_t)mb__rng_next(rng) >> 8, (uint32_t)mb__rng_next(rng) >> 8,
                          (uint32_t)mb__rng_next(rng) >> 8, (uint32_t)mb__rng_below(rng, STREAMS)};
    }
}

static void try_setting(const struct setting *set, unsigned sequences)
{
    static uint64_t settings; /* every setting gets sequences of its own */
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + settings++);
    for (unsigned i = 0; i < sequences; i++) {
        struct step steps[STEPS];
        uint64_t seed = mb__rng_next(&rng);
        size_t at;

        make_steps(&rng, steps);
        if (run_sequence(set, seed, steps, STEPS, &at))
            report(set, seed, steps, at < STEPS ? at : STEPS);
    }
}

static void try_model(const char *model)
{
    static const char *const tables[] = {"inline", "isolated"};

    for (unsigned bits = 0; bits < 32; bits++) {
        struct setting set = {.model = model,
                              .tables = tables[bits & 1],
                              .policy = bits & 2 ? MB_VM_POLICY_FRESH : MB_VM_POLICY_INLINE,
                              .driver_home = bits & 4,
                              .deferred = bits & 8,
                              .walk_ahead = bits & 16,
                              .no_guard = false};

        try_setting(&set, SEQUENCES);
    }
}

TEST(h200)
{
    try_model("h200");
}

TEST(a100)
{
    try_model("a100");
}

TEST(mi210)
{
    try_model("mi210");
}

/* Without guards, where no walk runs ahead. */
TEST(no_guard)
{
    struct setting set = {.model = "h200", .tables = "inline", .no_guard = true};

    set.policy = MB_VM_POLICY_INLINE;
    try_setting(&set, SEQUENCES);
    set.policy = MB_VM_POLICY_FRESH;
    try_setting(&set, SEQUENCES);
}

TEST(sequences_did_something)
{
    printf("COUNT random sequences against a naive model %llu\n",
           (unsigned long long)(work.sequences));
    printf("COUNT batches of those %llu\n", (unsigned long long)(work.batches));
    printf("COUNT entries of those %llu\n", (unsigned long long)(work.entries));
    printf("%llu sequences, %llu batches, %llu entries, %llu invalidates, %llu epochs, %llu pages "
           "judged\n",
           (unsigned long long)work.sequences, (unsigned long long)work.batches,
           (unsigned long long)work.entries, (unsigned long long)work.invalidates,
           (unsigned long long)work.epochs, (unsigned long long)work.judged);
    if (!work.sequences)
        SKIP("only this case was chosen");
    CHECK(work.batches > work.sequences && work.entries > 10 * work.sequences);
    CHECK(work.invalidates > work.sequences && work.judged > 20 * work.sequences);
    CHECK(work.epochs);
}
