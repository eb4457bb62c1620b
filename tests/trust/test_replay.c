/* SPDX-License-Identifier: MIT */
/*
 * The counterexamples of the protocol models (verify/spin), run on the software GPU: each scenario
 * with every step, right under every seed, and without the one that the model lacks, caught.
 * verify/spin/steps.tsv says which case belongs to which step; steps that tests/mutants remove
 * already are not repeated.
 */
#include "mutants/sim_mutant.h"

#include <string.h>

enum {
    A = 0,       /* slot of the first window */
    B = 32,      /* slot of the second: two groups further */
    FRAME_1 = 0, /* frames that windows show in turn */
    FRAME_2 = 1,
};

static const struct mb_hw_config plain = {0};
static const struct mb_hw_config isolated = {.tables = "isolated"};
/* Cleared slots show a donor frame, so that a stray access does not end the context. */
static const struct mb_hw_config primed = {.driver_home = true};

static void wait_host(struct sim_rig *rig, struct mb_hw_fence fence)
{
    rig_took(rig->ops->fence_wait_host(rig->dev, fence, 0));
}

static void stray(struct sim_rig *rig, unsigned stream, unsigned slot, enum mb_sim_step_kind kind)
{
    struct mb_sim_step step = {.kind = kind, .va = rig_va(rig, slot), .value = 0xbad};

    rig_took(mb__sim_kernel(rig->dev, rig->stream[stream], &step, 1, MB_SIM_ROGUE));
}

/* What a prefetcher may do at any time: walk an entry that is valid in memory. */
static void prefetch(struct sim_rig *rig, unsigned slot)
{
    if (mb__pfn_eq(mb__sim_walk(rig->dev, rig_va(rig, slot)), MB_NO_PFN))
        return;
    stray(rig, 3, slot, MB_SIM_LD_CG);
    wait_host(rig, rig_fence(rig, 3));
}

static void invalidate_all(struct sim_rig *rig, unsigned stream)
{
    rig_submit(rig, stream,
               (struct mb_hw_cmd[2]){{.kind = MB_HW_BARRIER}, {.kind = MB_HW_INVALIDATE}}, 2);
}

static void delay(struct sim_rig *rig, unsigned stream)
{
    rig_took(mb__sim_delay(rig->dev, rig->stream[stream], 100000));
}

/* ------------------------------------------------------------ coherence */

static struct sim_verdict clear_invalidate(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 0, A);
    rig_unmap(&rig, 0, A, 1, RIG_TARGETED | (broken ? RIG_NO_BARRIER : 0));
    wait_host(&rig, rig_fence(&rig, 0));
    prefetch(&rig, A);
    rig_map(&rig, 0, A, 1, FRAME_2, 0);
    rig_touch(&rig, 0, A);
    return rig_verdict(&rig);
}

TEST(invalidate_before_the_clear_is_visible)
{
    check_mutant(clear_invalidate, &plain, 1);
}

static struct sim_verdict two_batches(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    delay(&rig, 0);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_TARGETED);
    if (!broken)
        rig_wait(&rig, 1, rig_fence(&rig, 0));
    rig_map(&rig, 1, A, 1, FRAME_2, RIG_TARGETED | RIG_MEMBAR);
    rig_took(rig_sync(&rig));
    rig_touch(&rig, 1, A);
    return rig_verdict(&rig);
}

TEST(batches_of_a_window_out_of_order)
{
    check_mutant(two_batches, &plain, 1);
}

/* Slot 1 is another window's in the same group. Its unmap has been planned, not executed. */
static struct sim_verdict shared_group(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 1, A + 1, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 1, A + 1);
    wait_host(&rig, rig_fence(&rig, 1));
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[1], 1, 1));
    rig_unmap(&rig, 1, A + 1, 1, RIG_TARGETED | RIG_MEMBAR);
    rig_map(&rig, 0, A, 1, FRAME_2, broken ? 0 : RIG_TARGETED);
    rig_touch(&rig, 0, A);
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[0], 1, 1));
    return rig_verdict(&rig);
}

TEST(shared_group_counted_as_own)
{
    check_mutant(shared_group, &plain, MUTANT_SEEDS);
    check_mutant(shared_group, &primed, MUTANT_SEEDS);
}

/* A walk of the first window's last slot goes on into the next group. */
static struct sim_verdict neighbour_group(const struct mb_hw_config *config, bool broken)
{
    unsigned next = broken ? 16 : 32;
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 16, FRAME_1, RIG_INVALIDATE);
    for (unsigned i = 0; i < 16; i++)
        rig_touch(&rig, 0, i);
    rig_map(&rig, 1, next, 1, 20, 0);
    rig_wait(&rig, 1, rig_fence(&rig, 0));
    rig_touch(&rig, 1, next);
    return rig_verdict(&rig);
}

TEST(walk_ahead_without_a_guard)
{
    struct mb_hw_config ahead = {.walk_ahead = true};

    check_mutant(neighbour_group, &ahead, 1);
}

/* ------------------------------------------------------------ reuse */

static struct sim_verdict use_after_unmap(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_wait(&rig, 1, rig_fence(&rig, 0));
    stray(&rig, 1, A, MB_SIM_LD_CG);
    rig_wait(&rig, 0, rig_fence(&rig, 1));
    rig_unmap(&rig, 0, A, 1, RIG_MEMBAR | (broken ? 0 : RIG_INVALIDATE));
    /* The frame is somebody else's now. */
    rig_map(&rig, 0, B, 1, FRAME_1, RIG_TARGETED);
    rig_fill(&rig, 0, B, 64, 7);
    rig_wait(&rig, 1, rig_fence(&rig, 0));
    stray(&rig, 1, A, MB_SIM_ST);
    rig_wait(&rig, 0, rig_fence(&rig, 1));
    rig_verify(&rig, 0, B, 64, 7);
    return rig_verdict(&rig);
}

TEST(use_after_unmap_without_invalidate)
{
    check_mutant(use_after_unmap, &primed, 1);
}

/* ------------------------------------------------------------ epochs */

/* A deferred unmap: nothing but the clear. */
static void retire(struct sim_rig *rig, unsigned stream, bool barrier)
{
    rig_unmap(rig, stream, A, 1, barrier ? 0 : RIG_NO_BARRIER);
}

static void use_again(struct sim_rig *rig, unsigned stream)
{
    rig_map(rig, stream, A, 1, FRAME_2, 0);
    rig_touch(rig, stream, A);
}

static void use_first(struct sim_rig *rig)
{
    rig_map(rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(rig, 0, A);
}

/* The flush was issued, and done, before the window was retired. */
static struct sim_verdict late_retirement(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    use_first(&rig);
    invalidate_all(&rig, 1);
    rig_wait(&rig, 0, rig_fence(&rig, 1));
    rig_touch(&rig, 0, A);
    retire(&rig, 0, true);
    wait_host(&rig, rig_fence(&rig, 0));
    if (!broken)
        invalidate_all(&rig, 0);
    use_again(&rig, 0);
    return rig_verdict(&rig);
}

TEST(flush_takes_windows_retired_later)
{
    check_mutant(late_retirement, &plain, MUTANT_SEEDS);
    check_mutant(late_retirement, &isolated, MUTANT_SEEDS);
}

static struct sim_verdict flush_pending(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    use_first(&rig);
    retire(&rig, 0, true);
    wait_host(&rig, rig_fence(&rig, 0));
    delay(&rig, 1);
    invalidate_all(&rig, 1);
    if (!broken)
        rig_wait(&rig, 0, rig_fence(&rig, 1));
    use_again(&rig, 0);
    return rig_verdict(&rig);
}

TEST(flush_not_awaited)
{
    check_mutant(flush_pending, &plain, 1);
}

/* The window waits on stream 0; a flush on stream 1 is done long before. */
static struct sim_verdict foreign_flush(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    use_first(&rig);
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[0], 1, 1));
    rig_touch(&rig, 0, A);
    retire(&rig, 0, true);
    if (broken) {
        invalidate_all(&rig, 1);
        rig_took(mb__sim_sem_set(rig.dev, rig.stream[1], 1, 1));
    } else {
        mb__sim_sem_host(rig.dev, 1, 1);
        rig_wait(&rig, 1, rig_fence(&rig, 0));
        invalidate_all(&rig, 1);
    }
    wait_host(&rig, rig_fence(&rig, 0));
    wait_host(&rig, rig_fence(&rig, 1));
    use_again(&rig, 0);
    return rig_verdict(&rig);
}

TEST(flush_marks_windows_of_other_streams)
{
    check_mutant(foreign_flush, &plain, MUTANT_SEEDS);
}

static struct sim_verdict blind_flush(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    use_first(&rig);
    retire(&rig, 0, !broken);
    rig_submit(&rig, 0, &(struct mb_hw_cmd){.kind = MB_HW_INVALIDATE}, 1);
    wait_host(&rig, rig_fence(&rig, 0));
    prefetch(&rig, A);
    use_again(&rig, 0);
    return rig_verdict(&rig);
}

TEST(flush_before_the_clear_is_visible)
{
    check_mutant(blind_flush, &plain, 1);
}

/* ------------------------------------------------------------ tickets */

enum { REQUEST = 1, ANSWER = 2, STARTED = 3, WRITTEN = 4, HELPER = 3 };

static void ask(struct sim_rig *rig, unsigned stream, uint64_t ticket)
{
    rig_took(mb__sim_sem_set(rig->dev, rig->stream[stream], REQUEST, ticket));
}

static void await(struct sim_rig *rig, unsigned stream, uint64_t ticket)
{
    rig_took(mb__sim_sem_wait(rig->dev, rig->stream[stream], ANSWER, ticket));
}

/* Invalidate n of the helper's queue. */
static void prepare(struct sim_rig *rig, uint64_t n)
{
    rig_took(mb__sim_sem_wait(rig->dev, rig->stream[HELPER], REQUEST, n));
    invalidate_all(rig, HELPER);
    rig_took(mb__sim_sem_set(rig->dev, rig->stream[HELPER], ANSWER, n));
}

/*
 * Stream 1's request 1 has been answered, but the old translation came back into the TLB before
 * stream 0 changes its entry. What `ticket` stream 0 waits for decides.
 */
static struct sim_verdict answered_before(const struct mb_hw_config *config, uint64_t ticket)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    prepare(&rig, 1);
    prepare(&rig, 2);
    rig_map(&rig, 0, A, 1, FRAME_1, 0);
    ask(&rig, 1, 1);
    await(&rig, 0, 1);
    rig_touch(&rig, 0, A);
    rig_map(&rig, 0, A, 1, FRAME_2, 0);
    ask(&rig, 0, ticket);
    await(&rig, 0, ticket);
    rig_touch(&rig, 0, A);
    return rig_verdict(&rig);
}

/* The words were read when nobody had asked for anything: request 0, answer 0, so ticket 1. */
static struct sim_verdict early_ticket(const struct mb_hw_config *config, bool broken)
{
    return answered_before(config, broken ? 0 + 1 : 1 + 1);
}

TEST(ticket_taken_before_the_entries)
{
    check_mutant(early_ticket, &plain, MUTANT_SEEDS);
}

static struct sim_verdict request_itself(const struct mb_hw_config *config, bool broken)
{
    uint64_t request = 1;

    return answered_before(config, broken ? request : request + 1);
}

TEST(ticket_of_the_last_request)
{
    check_mutant(request_itself, &plain, MUTANT_SEEDS);
}

/* Invalidate 1 has started, and done its work, but is not answered: request 1, answer 0. */
static struct sim_verdict running(const struct mb_hw_config *config, bool broken)
{
    uint64_t ticket = broken ? 0 + 1 : 0 + 2;
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 0, A);
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[HELPER], REQUEST, 1));
    invalidate_all(&rig, HELPER);
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[HELPER], STARTED, 1));
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[HELPER], WRITTEN, 1));
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[HELPER], ANSWER, 1));
    prepare(&rig, 2);
    ask(&rig, 1, 1);
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[0], STARTED, 1));
    rig_touch(&rig, 0, A);
    rig_map(&rig, 0, A, 1, FRAME_2, 0);
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[0], WRITTEN, 1));
    ask(&rig, 0, ticket);
    await(&rig, 0, ticket);
    rig_touch(&rig, 0, A);
    return rig_verdict(&rig);
}

TEST(ticket_of_the_running_invalidate)
{
    check_mutant(running, &plain, MUTANT_SEEDS);
}

/* Three requests at once, two prepared invalidates: request 2 and answer 0 give ticket min(3, 2).
 * */
static struct sim_verdict three_requests(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    prepare(&rig, 1);
    prepare(&rig, 2);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t ticket = i + 1 > 2 && !broken ? 2 : i + 1;

        rig_map(&rig, i, B * i, 1, i, 0);
        if (i)
            rig_wait(&rig, i, rig_fence(&rig, i - 1)); /* reads request after the one before it */
        ask(&rig, i, ticket);
    }
    for (unsigned i = 0; i < 3; i++) {
        await(&rig, i, i + 1 > 2 && !broken ? 2 : i + 1);
        rig_touch(&rig, i, B * i);
    }
    return rig_verdict(&rig);
}

TEST(requests_that_do_not_merge)
{
    CHECK_EQ(three_requests(&plain, true).err, MB_ERR_DEADLOCK);
    check_mutant(three_requests, &plain, MUTANT_SEEDS);
}

/* Stream 1 raised the word to 2; stream 0, which had read it before, stores its 1 over it. */
static struct sim_verdict lost_raise(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    prepare(&rig, 1);
    prepare(&rig, 2);
    ask(&rig, 0, 1);
    if (!broken)
        ask(&rig, 1, 2);
    await(&rig, 0, 1);
    await(&rig, 1, 2);
    return rig_verdict(&rig);
}

TEST(request_stored_instead_of_raised)
{
    CHECK_EQ(lost_raise(&plain, true).err, MB_ERR_DEADLOCK);
    check_mutant(lost_raise, &plain, MUTANT_SEEDS);
}

static struct sim_verdict early_answer(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 0, A);
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[HELPER], REQUEST, 1));
    if (broken)
        rig_took(mb__sim_sem_set(rig.dev, rig.stream[HELPER], ANSWER, 1));
    delay(&rig, HELPER);
    invalidate_all(&rig, HELPER);
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[HELPER], ANSWER, 1));
    rig_map(&rig, 0, A, 1, FRAME_2, 0);
    ask(&rig, 0, 1);
    await(&rig, 0, 1);
    rig_touch(&rig, 0, A);
    return rig_verdict(&rig);
}

TEST(answer_before_the_invalidate)
{
    check_mutant(early_answer, &plain, 1);
}

static struct sim_verdict dry(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    prepare(&rig, 1);
    if (!broken)
        prepare(&rig, 2);
    for (uint64_t n = 1; n <= 2; n++) {
        rig_map(&rig, 0, A, 1, (unsigned)n, 0);
        ask(&rig, 0, n);
        await(&rig, 0, n);
        rig_touch(&rig, 0, A);
    }
    return rig_verdict(&rig);
}

TEST(queue_of_invalidates_runs_dry)
{
    CHECK_EQ(dry(&plain, true).err, MB_ERR_DEADLOCK);
    check_mutant(dry, &plain, MUTANT_SEEDS);
}

/* A kernel that goes on, or does not, with its ticket unanswered. */
static struct sim_verdict unanswered(const struct mb_hw_config *config, bool goes_on)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 0, A);
    rig_map(&rig, 0, A, 1, FRAME_2, 0);
    ask(&rig, 0, 1); /* nobody listens */
    if (goes_on)
        rig_touch(&rig, 0, A);
    return rig_verdict(&rig);
}

TEST(kernel_goes_on_without_an_answer)
{
    check_mutant(unanswered, &plain, MUTANT_SEEDS);
}

/* answer 2^64 - 1, ticket 2^64 + 1 modulo 2^64: has it been reached? */
static struct sim_verdict wrapped(const struct mb_hw_config *config, bool broken)
{
    uint64_t answer = UINT64_MAX, ticket = answer + 2;
    bool reached = broken ? answer >= ticket : (int64_t)(answer - ticket) >= 0;

    return unanswered(config, reached);
}

TEST(tickets_compared_without_wrapping)
{
    check_mutant(wrapped, &plain, MUTANT_SEEDS);
}

/* ------------------------------------------------------------ queues of isolated tables */

/* The queue of stream 1 waits for stream 1, and holds the engine that stream 0's queue needs. */
static struct sim_verdict held_engine(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    if (broken)
        mb__sim_set_mutants(rig.dev, MB_SIM_SHARED_QUEUE);
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[1], 5, 1));
    rig_map(&rig, 1, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_touch(&rig, 1, A);
    rig_map(&rig, 0, B, 1, FRAME_2, RIG_INVALIDATE);
    rig_touch(&rig, 0, B);
    rig_took(mb__sim_sem_set(rig.dev, rig.stream[0], 5, 1));
    return rig_verdict(&rig);
}

TEST(engine_held_while_waiting)
{
    CHECK_EQ(held_engine(&isolated, true).err, MB_ERR_DEADLOCK);
    check_mutant(held_engine, &isolated, MUTANT_SEEDS);
}

/* Without the announcement the helper is a stream that nothing holds back. */
static struct sim_verdict running_ahead(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_took(rig_sync(&rig));
    delay(&rig, 0);
    rig_touch(&rig, 0, A);
    rig_map(&rig, broken ? 1 : 0, A, 1, FRAME_2, RIG_INVALIDATE | RIG_MEMBAR);
    rig_touch(&rig, broken ? 1 : 0, A);
    return rig_verdict(&rig);
}

TEST(helper_runs_ahead_of_its_stream)
{
    check_mutant(running_ahead, &isolated, 1);
}

static struct sim_verdict copy_in_flight(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 8, FRAME_1, RIG_INVALIDATE | (broken ? RIG_NO_BARRIER : 0));
    for (unsigned i = 0; i < 8; i++)
        rig_touch(&rig, 0, A + i);
    return rig_verdict(&rig);
}

TEST(answer_before_the_copy_has_landed)
{
    check_mutant(copy_in_flight, &isolated, 1);
}

static struct sim_verdict impatient(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    if (!broken)
        rig_wait(&rig, 1, rig_fence(&rig, 0));
    rig_touch(&rig, 1, A);
    return rig_verdict(&rig);
}

TEST(stream_does_not_wait_for_its_helper)
{
    check_mutant(impatient, &isolated, 1);
}

/* ------------------------------------------------------------ frames that go back to the driver */

enum release {
    CLEARED_AND_AWAITED,
    NOT_CLEARED,
    NOT_INVALIDATED,
    NOT_AWAITED,
};

static void release_slab(struct sim_rig *rig)
{
    rig_took(rig->ops->slab_release(rig->dev, &rig->slab));
}

/* A kernel of stream 1 stores through the window before and after the frames go back. */
static struct sim_verdict release_while_used(const struct mb_hw_config *config, enum release how)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_took(rig_sync(&rig));
    stray(&rig, 1, A, MB_SIM_ST);
    wait_host(&rig, rig_fence(&rig, 1));
    if (how == NOT_AWAITED) /* the clear is still queued when the frames go */
        rig_took(mb__sim_sem_wait(rig.dev, rig.stream[0], 3, 1));
    if (how != NOT_CLEARED)
        rig_unmap(&rig, 0, A, 1, how == NOT_INVALIDATED ? RIG_MEMBAR : RIG_INVALIDATE | RIG_MEMBAR);
    if (how != NOT_AWAITED)
        wait_host(&rig, rig_fence(&rig, 0));
    release_slab(&rig);
    stray(&rig, 1, A, MB_SIM_ST);
    wait_host(&rig, rig_fence(&rig, 1));
    mb__sim_sem_host(rig.dev, 3, 1);
    return rig_verdict(&rig);
}

static struct sim_verdict shown(const struct mb_hw_config *config, bool broken)
{
    return release_while_used(config, broken ? NOT_CLEARED : CLEARED_AND_AWAITED);
}

TEST(released_while_a_window_shows_it)
{
    check_mutant(shown, &primed, MUTANT_SEEDS);
}

static struct sim_verdict cached(const struct mb_hw_config *config, bool broken)
{
    return release_while_used(config, broken ? NOT_INVALIDATED : CLEARED_AND_AWAITED);
}

TEST(released_without_an_invalidate)
{
    check_mutant(cached, &primed, 1);
}

static struct sim_verdict queued(const struct mb_hw_config *config, bool broken)
{
    return release_while_used(config, broken ? NOT_AWAITED : CLEARED_AND_AWAITED);
}

TEST(released_before_the_clear_has_passed)
{
    check_mutant(queued, &primed, MUTANT_SEEDS);
}

/* The kernel goes on after its store, so that nothing but a membar says that the store has landed.
 * */
static struct sim_verdict in_flight(const struct mb_hw_config *config, bool broken)
{
    struct mb_sim_step steps[3] = {
        {.kind = MB_SIM_ST, .value = 0x5e1f},
        {.kind = MB_SIM_SEM_SET, .sem = 1, .value = 1},
        {.kind = MB_SIM_SEM_WAIT, .sem = 2, .value = 1},
    };
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_took(rig_sync(&rig));
    steps[0].va = rig_va(&rig, A);
    rig_took(mb__sim_kernel(rig.dev, rig.stream[1], steps, 3, MB_SIM_ROGUE));
    rig_took(mb__sim_sem_wait(rig.dev, rig.stream[0], 1, 1));
    rig_unmap(&rig, 0, A, 1, RIG_INVALIDATE | (broken ? 0 : RIG_MEMBAR));
    wait_host(&rig, rig_fence(&rig, 0));
    release_slab(&rig);
    mb__sim_sem_host(rig.dev, 2, 1);
    return rig_verdict(&rig);
}

TEST(released_with_a_store_on_its_way)
{
    check_mutant(in_flight, &plain, 1);
}

static struct sim_verdict released_first(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, A, 1, FRAME_1, RIG_INVALIDATE);
    rig_took(rig_sync(&rig));
    if (broken)
        release_slab(&rig);
    stray(&rig, 1, A, MB_SIM_ST);
    wait_host(&rig, rig_fence(&rig, 1));
    rig_unmap(&rig, 0, A, 1, RIG_INVALIDATE | RIG_MEMBAR);
    wait_host(&rig, rig_fence(&rig, 0));
    if (!broken)
        release_slab(&rig);
    return rig_verdict(&rig);
}

TEST(released_before_the_clear_is_submitted)
{
    check_mutant(released_first, &plain, MUTANT_SEEDS);
}

/* ------------------------------------------------------------ directories */

/*
 * A window under a directory entry of its own, which stream 0 writes. Stream 1 maps there, behind
 * the fence of the building.
 */
static struct sim_verdict build_and_use(const struct mb_hw_config *config, bool barrier, bool wait)
{
    const uint64_t bytes = (uint64_t)512 << 20;
    struct mb_hw_cmd dir[2] = {{.kind = MB_HW_DIR}, {.kind = MB_HW_BARRIER}};
    struct mb_hw_view view;
    uint64_t table;
    struct sim_rig rig;
    mb_pfn pfn;

    rig_open(&rig, config);
    CHECK_OK(rig.ops->table_alloc(rig.dev, 4096, &table));
    view = rig.view;
    view.table = table;
    view.bytes = bytes;
    CHECK_OK(rig.ops->va_reserve(rig.dev, bytes, bytes, &view.va));
    dir[0].dir.table_phys = rig.directory;
    dir[0].dir.level = rig.geo.levels - 2;
    dir[0].dir.index = mb_fmt_index(rig.geo.level[rig.geo.levels - 2], view.va.addr);
    dir[0].dir.value = mb_fmt_encode_dir(rig.dev->caps.format, rig.geo.levels - 2,
                                         &(struct mb_dir){.valid = 1, .table_phys = table});
    rig_submit(&rig, 0, dir, barrier ? 2 : 1);
    if (wait)
        rig_wait(&rig, 1, rig_fence(&rig, 0));
    pfn = rig_pfn(&rig, FRAME_1);
    rig.ops->intend(rig.dev, view.va, 1, MB_FRAME_SHIFT, &pfn);
    rig_submit(
        &rig, 1,
        (struct mb_hw_cmd[2]){{.kind = MB_HW_LEAVES, .leaves = {&view, 0, 1, &pfn, rig.tmpl}},
                              {.kind = MB_HW_BARRIER}},
        2);
    rig_took(rig.ops->fill(rig.dev, rig.stream[1], view.va, 64, 1));
    return rig_verdict(&rig);
}

static struct sim_verdict quiet_directory(const struct mb_hw_config *config, bool broken)
{
    return build_and_use(config, !broken, true);
}

TEST(directory_without_a_barrier)
{
    check_mutant(quiet_directory, &plain, 1);
}

static struct sim_verdict second_window(const struct mb_hw_config *config, bool broken)
{
    return build_and_use(config, true, !broken);
}

TEST(second_window_does_not_wait)
{
    check_mutant(second_window, &plain, 1);
}
