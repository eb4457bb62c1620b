/* SPDX-License-Identifier: MIT */
/*
 * The ticket protocol between kernels and helper, on threads: the very functions that pte_pop is
 * compiled with. A kernel stores its entry, takes a ticket and waits; the helper's invalidate takes
 * a copy of all entries. When the ticket is answered the copy must hold the kernel's entry.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "test.h"

#define WORD(at) ((_Atomic uint64_t *)(uintptr_t)(at))
#define MB_TICKET_FN static inline
#define MB_TICKET_LOAD(at) atomic_load_explicit(WORD(at), memory_order_acquire)
#define MB_TICKET_PEEK(at) atomic_load_explicit(WORD(at), memory_order_relaxed)
#define MB_TICKET_CAS(at, old, wanted) exchange(WORD(at), old, wanted)
#define MB_TICKET_MAX(at, value) raise_to(WORD(at), value)

static uint64_t exchange(_Atomic uint64_t *at, uint64_t old, uint64_t wanted)
{
    atomic_compare_exchange_strong(at, &old, wanted);
    return old;
}

static void raise_to(_Atomic uint64_t *at, uint64_t value)
{
    uint64_t now = atomic_load(at);

    while (now < value && !atomic_compare_exchange_weak(at, &now, value))
        ;
}

#include "kernels/cuda/ticket.h"

enum { KERNELS = 4, ROUNDS = 4000 };

/* Shared by all threads. */
static struct {
    _Atomic uint64_t request, answer;
    _Atomic uint64_t entry[KERNELS]; /* each written by its kernel */
    _Atomic uint64_t copy[KERNELS];  /* written by the helper */
    atomic_bool stop;
} shared;

struct kernel {
    unsigned index;
    bool fast;
    uint64_t seed;
    unsigned stale; /* answered tickets whose copy was older than the entry */
    unsigned shared_tickets;
};

static uint64_t request_at(void)
{
    return (uintptr_t)&shared.request;
}

static uint64_t answer_at(void)
{
    return (uintptr_t)&shared.answer;
}

/* wait request >= n, copy, answer = n */
static void *help(void *unused)
{
    (void)unused;
    for (uint64_t n = 1; !atomic_load(&shared.stop);) {
        if (atomic_load(&shared.request) < n) {
            sched_yield();
            continue;
        }
        for (unsigned i = 0; i < KERNELS; i++)
            atomic_store(&shared.copy[i], atomic_load(&shared.entry[i]));
        atomic_store(&shared.answer, n++);
    }
    return NULL;
}

static void *run(void *user)
{
    struct kernel *k = user;
    struct mb_rng rng;

    mb__rng_seed(&rng, k->seed);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        struct mb_ticket_seen seen = mb_ticket_look(request_at(), answer_at());
        uint64_t ticket;

        if (mb__rng_below(&rng, 4) == 0)
            sched_yield();
        atomic_store(&shared.entry[k->index], round);
        ticket = k->fast ? mb_ticket_fast(request_at(), answer_at(), seen)
                         : mb_ticket(request_at(), answer_at());
        k->shared_tickets += ticket != seen.request + 1;
        while (!mb_ticket_answered(answer_at(), ticket))
            sched_yield();
        k->stale += atomic_load(&shared.copy[k->index]) < round;
    }
    return NULL;
}

/* Returns the number of invalidates that all rounds took. */
static uint64_t race(unsigned fast_mask, uint64_t seed)
{
    struct kernel kernel[KERNELS];
    pthread_t helper, thread[KERNELS];

    memset(&shared, 0, sizeof(shared));
    CHECK_EQ(pthread_create(&helper, NULL, help, NULL), 0);
    for (unsigned i = 0; i < KERNELS; i++) {
        kernel[i] = (struct kernel){.index = i, .fast = fast_mask >> i & 1, .seed = seed + i};
        CHECK_EQ(pthread_create(&thread[i], NULL, run, &kernel[i]), 0);
    }
    for (unsigned i = 0; i < KERNELS; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
    atomic_store(&shared.stop, true);
    CHECK_EQ(pthread_join(helper, NULL), 0);
    for (unsigned i = 0; i < KERNELS; i++)
        CHECK_EQ(kernel[i].stale, 0);
    return atomic_load(&shared.answer);
}

TEST(an_answered_ticket_covers_the_entries_before_it)
{
    CHECK(race(0x0, mb_test_seed()) <= KERNELS * ROUNDS);
    CHECK(race(0xf, mb_test_seed()) <= KERNELS * ROUNDS);
    CHECK(race(0x5, mb_test_seed()) <= KERNELS * ROUNDS);
}

/* One after the other, without threads: each case of the choice. */
TEST(tickets_by_hand)
{
    struct mb_ticket_seen seen;

    memset(&shared, 0, sizeof(shared));
    seen = mb_ticket_look(request_at(), answer_at());
    CHECK_EQ(mb_ticket_fast(request_at(), answer_at(), seen), 1); /* nobody asks */
    CHECK_EQ(atomic_load(&shared.request), 1);
    CHECK_EQ(mb_ticket_fast(request_at(), answer_at(), seen), 2); /* 1 may have started */
    CHECK_EQ(mb_ticket_fast(request_at(), answer_at(), seen), 2); /* 2 has not: it is shared */
    CHECK_EQ(mb_ticket(request_at(), answer_at()), 2);
    CHECK_EQ(atomic_load(&shared.request), 2);
    atomic_store(&shared.answer, 2);
    CHECK(mb_ticket_answered(answer_at(), 2) && !mb_ticket_answered(answer_at(), 3));
    seen = mb_ticket_look(request_at(), answer_at());
    CHECK_EQ(mb_ticket(request_at(), answer_at()), 3);
    CHECK_EQ(mb_ticket_fast(request_at(), answer_at(), seen), 4); /* seen has gone stale */
    /* Numbers wrap. */
    atomic_store(&shared.request, UINT64_MAX);
    atomic_store(&shared.answer, UINT64_MAX);
    seen = mb_ticket_look(request_at(), answer_at());
    CHECK_EQ(mb_ticket_fast(request_at(), answer_at(), seen), 0);
    CHECK(!mb_ticket_answered(answer_at(), 0));
}
