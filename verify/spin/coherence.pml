/* SPDX-License-Identifier: MIT */
/*
 * coherence.pml - entries of windows against what TLBs hold: src/vm/batch.c, src/vm/coherence.c.
 *
 * The host keeps the record (what is mapped, which groups may be cached), plans a batch from it and puts
 * the batch on one of two streams. A stream executes a batch step by step: wait, clear, barrier,
 * invalidate, write, barrier, invalidate. Entries that were written arrive in memory later, in any order
 * between slots. A walk brings in the whole group; walks happen at an access, and by themselves
 * in any group that has a valid entry.
 *
 * PROPERTY  every use reaches the frame that the program last put there (no stale, no foreign access, no
 *           fault); no stream waits for ever.
 *
 * LAYOUT    OWN     both slots are one window's, in one group
 *           SHARED  a window each, in one group (packs)
 *           APART   a window each, in groups with a guard between, walks run ahead into the next group
 * DONOR     cleared slots hold a valid entry of a donor frame (windows primed by a driver)
 *
 * REMOVABLE STEPS  see scripts/check-model, which must find a counterexample for each.
 */
#ifndef OPS
#define OPS 3 /* batches */
#endif

#define INVALID 0
#define DONOR_FRAME 3
#ifdef DONOR
#define CLEARED DONOR_FRAME
#else
#define CLEARED INVALID
#endif

#ifdef APART
#ifdef NO_GUARD
#define GROUP(s) (s)
#define GROUPS 3
#else
#define GROUP(s) (2 * (s))
#define GROUPS 4
#endif
#define WINDOW(s) (s)
#else
#define GROUP(s) 0
#define GROUPS 2
#ifdef SHARED
#define WINDOW(s) (s)
#else
#define WINDOW(s) 0
#endif
#endif

mtype = {batch, use};

/* message: kind, slot, frame wanted (0: unmap), clear first, invalidate between, invalidate after,
 * ticket of the other stream to wait for */
chan queue[2] = [2 * OPS] of {mtype, byte, byte, bool, bool, bool, byte};

/* the device */
byte entry[2] = {CLEARED, CLEARED};
bool posted[2];
byte posted_value[2];
bool cached[GROUPS];
byte tlb[2];
byte done[2]; /* tickets passed, by stream */

/* the host's record */
byte shown[2];
bool may_be_cached[GROUPS];
byte sent[2];
byte last_ticket[2]; /* of a window's last batch */
byte last_stream[2];
byte use_ticket[4]; /* of the last use of slot s on stream q: [2s + q] */

inline fill(g)
{
    cached[g] = true;
    if
    :: GROUP(0) == (g) -> tlb[0] = entry[0]
    :: else
    fi;
    if
    :: GROUP(1) == (g) -> tlb[1] = entry[1]
    :: else
    fi
}

inline walk(g)
{
    fill(g);
#ifdef APART
    if
    :: !cached[(g) + 1] -> fill((g) + 1)
    :: true
    fi
#endif
}

/* The group of a slot and, as batches do, the group behind it. */
inline invalidate(s)
{
    d_step {
        cached[GROUP(s)] = false;
        cached[GROUP(s) + 1] = false
    }
}

/* Writes of one slot keep their order. */
inline post(s, value)
{
    atomic {
        !posted[s] -> posted[s] = true;
        posted_value[s] = value
    }
}

proctype memory()
{
end:
    do
    :: atomic { posted[0] -> entry[0] = posted_value[0]; posted[0] = false }
    :: atomic { posted[1] -> entry[1] = posted_value[1]; posted[1] = false }
    od
}

/* Accesses that the program may make at any time, and prefetches. */
proctype walker()
{
end:
    do
    :: atomic { entry[0] != CLEARED && !cached[GROUP(0)] -> walk(GROUP(0)) }
    :: atomic { entry[1] != CLEARED && !cached[GROUP(1)] -> walk(GROUP(1)) }
    od
}

proctype stream(byte q)
{
    byte s, f, ticket;
    bool clear, between, after;

end:
    do
    :: queue[q] ? batch, s, f, clear, between, after, ticket ->
        done[1 - q] >= ticket;
        if
        :: clear ->
            post(s, CLEARED);
#ifndef NO_BARRIER_AFTER_CLEAR
            !posted[s];
#endif
            if
            :: between -> invalidate(s)
            :: else
            fi
        :: else
        fi;
        if
        :: f != 0 ->
            post(s, f);
#ifndef NO_BARRIER_AFTER_WRITE
            !posted[s];
#endif
            if
            :: after -> invalidate(s)
            :: else
            fi
        :: else
        fi;
        done[q]++
    :: queue[q] ? use, s, f, clear, between, after, ticket ->
        atomic {
            done[1 - q] >= ticket;
            if
            :: !cached[GROUP(s)] -> walk(GROUP(s))
            :: else
            fi;
            assert(tlb[s] == f);
            done[q]++
        }
    od
}

/* Valid entries of the slot's group that the batch leaves alone, by the record. */
#define KEPT(s) (GROUP(0) == GROUP(1) && shown[1 - (s)] != 0)

inline plan(s, f)
{
    clear = shown[s] != 0;
    between = clear;
    after = f != 0 && (KEPT(s) || (may_be_cached[GROUP(s)] && !clear));
#ifdef SHARED
#ifndef SHARED_COUNTS_AS_OWN
    after = f != 0;
#endif
#endif
#ifdef GROUP_RULE_IGNORED
    after = false;
#endif
#ifdef NO_INVALIDATE_ON_REMAP
    if
    :: clear && f != 0 -> between = false; after = false
    :: else
    fi;
#endif
    shown[s] = f;
    if
    :: f != 0 || KEPT(s) -> may_be_cached[GROUP(s)] = true
    :: else -> may_be_cached[GROUP(s)] = may_be_cached[GROUP(s)] && !between
    fi
}

proctype host()
{
    byte n, s, f, q, ticket;
    bool clear, between, after;

    do
    :: n == OPS -> break
    :: n < OPS ->
        atomic {
            select(s : 0 .. 1);
            select(q : 0 .. 1);
            select(f : 0 .. 2);
            if
            :: f != shown[s] ->
                plan(s, f);
                /* The caller orders its own uses; earlier batches of the window are vm's. */
                ticket = use_ticket[2 * s + 1 - q];
#ifndef NO_WAIT_FOR_EARLIER_BATCH
                if
                :: last_stream[WINDOW(s)] == 1 - q && last_ticket[WINDOW(s)] > ticket ->
                    ticket = last_ticket[WINDOW(s)]
                :: else
                fi;
#endif
                queue[q] ! batch, s, f, clear, between, after, ticket;
                sent[q]++;
                last_ticket[WINDOW(s)] = sent[q];
                last_stream[WINDOW(s)] = q;
                if
                :: f != 0 ->
                    queue[q] ! use, s, f, false, false, false, 0;
                    sent[q]++;
                    use_ticket[2 * s + q] = sent[q]
                :: true
                fi
            :: else
            fi;
            n++
        }
    od;
    done[0] == sent[0] && done[1] == sent[1]
}

init
{
    atomic {
        run memory();
        run walker();
        run stream(0);
        run stream(1);
        run host()
    }
}
