/* SPDX-License-Identifier: MIT */
/*
 * tickets.pml - invalidates that kernels ask for: kernels/cuda/program.h, pte_pop.cu, src/hw/cuda/refill.c.
 *
 * Kernels change their entry, take a ticket from the words request and answer, raise request and wait
 * until answer has come to their ticket. A helper works through prepared invalidates n = 1, 2, 3, ...: wait
 * for request >= n, invalidate, answer := n. The host prepares more before they run out. Numbers are
 * taken modulo 32 and compared by signed difference, so that they wrap within the run.
 *
 * PROPERTY  a kernel that goes on finds no old translation of its entry; request is at most two ahead of
 *           answer (any number of requests costs at most two invalidates); a kernel always gets its answer,
 *           or, when the helper has died (HELPER_DIES), ends in an error and never goes on.
 */
#ifndef KERNELS
#define KERNELS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define START 30 /* the first ticket: wraps soon */
#define WRAP(x) ((x) & 31)
#ifdef UNSIGNED_COMPARE
#define REACHED(a, b) ((a) >= (b)) /* a has come to b */
#else
#define REACHED(a, b) (WRAP((a) - (b)) < 16)
#endif
#define NOTHING 2

byte request = START, answer = START;
bit entry[KERNELS];           /* version in memory */
byte tlb[KERNELS];            /* version cached, or NOTHING */
byte prepared;                /* invalidates in the helper's queue, not started */
bool dead;                    /* the helper has died */
byte finished;

/* Any access may bring the entry as it is now into the TLB. */
proctype walker()
{
end:
    do
    :: atomic { tlb[0] == NOTHING -> tlb[0] = entry[0] }
    :: atomic { tlb[1] == NOTHING -> tlb[1] = entry[1] }
#if KERNELS > 2
    :: atomic { tlb[2] == NOTHING -> tlb[2] = entry[2] }
#endif
    od
}

proctype helper()
{
    byte n = START;

end:
    do
    :: prepared > 0 ->
        prepared--;
        n = WRAP(n + 1);
end_wait:
        REACHED(request, n);
#ifdef ANSWER_BEFORE_INVALIDATE
        answer = n;
#endif
        /* Started: walks that read memory before this point may be in the TLB until it has completed. */
        d_step {
            tlb[0] = NOTHING;
            tlb[1] = NOTHING;
#if KERNELS > 2
            tlb[2] = NOTHING
#endif
        };
        /* Completed. */
#ifndef ANSWER_BEFORE_INVALIDATE
        answer = n
#endif
#ifdef HELPER_DIES
    :: true -> dead = true; break
#endif
    od
}

/* The host's thread tops the queue up. */
proctype refill()
{
#ifdef NO_REFILL
    prepared = 1
#else
end:
    do
    :: atomic { prepared < 2 && finished < KERNELS -> prepared = prepared + 2 }
    od
#endif
}

proctype kernel(byte k)
{
    byte round, r, a, t;

    do
    :: round == ROUNDS -> break
    :: round < ROUNDS ->
#ifdef TICKET_BEFORE_ENTRIES
        r = request;
        a = answer;
        entry[k] = 1 - entry[k];
#else
        entry[k] = 1 - entry[k]; /* and a fence */
        r = request;
        a = answer;
#endif
#ifdef TICKET_OF_THE_LAST_REQUEST
        t = r;
#else
        t = WRAP(r + 1);
#endif
#ifdef TICKET_OF_THE_RUNNING_ONE
        if
        :: !REACHED(WRAP(a + 1), t) -> t = WRAP(a + 1)
        :: else
        fi;
#elif !defined(NO_MERGING)
        if
        :: !REACHED(WRAP(a + 2), t) -> t = WRAP(a + 2)
        :: else
        fi;
#endif
#ifdef STORE_INSTEAD_OF_MAXIMUM
        if
        :: !REACHED(r, t) -> request = t
        :: else
        fi;
#else
        atomic {
            if
            :: !REACHED(request, t) -> request = t
            :: else
            fi
        };
#endif
        assert(WRAP(request - answer) <= 2);
        if
        :: REACHED(answer, t)
        :: timeout ->
#ifndef HELPER_DIES
            assert(false); /* the answer must come */
#endif
#ifndef GO_ON_WITHOUT_ANSWER
            break
#endif
        fi;
        assert(tlb[k] == NOTHING || tlb[k] == entry[k]);
        round++
    od;
    finished++
}

init
{
    atomic {
        tlb[0] = NOTHING;
        tlb[1] = NOTHING;
#if KERNELS > 2
        tlb[2] = NOTHING;
#endif
        run walker();
        run helper();
        run refill();
        run kernel(0);
        run kernel(1);
#if KERNELS > 2
        run kernel(2)
#endif
    }
}
