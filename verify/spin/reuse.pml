/* SPDX-License-Identifier: MIT */
/*
 * reuse.pml - when a frame may belong to somebody else: src/vm/frames.c, src/vm/wait.c.
 *
 * Two frames, each reachable at its home for ever, one window that may show one of them besides, two
 * streams. The host allocates, maps, unmaps and frees in any order that callers may use, and moves what
 * fences allow. A kernel of another module stores through the window whenever it translates; a store
 * lands some time after its translation.
 *
 * PROPERTY  a store lands in a frame of the owner it was made for; no stream waits for ever.
 */
#ifndef OPS
#define OPS 6
#endif

mtype = {FREE, OWNED, DRAINING};
mtype = {map, unmap, work};

/* kind, frame + 1, owner, ticket of the other stream to wait for */
chan queue[2] = [OPS] of {mtype, byte, byte, byte};
byte sent[2], done[2];

/* frames */
mtype state[2] = {FREE, FREE};
byte owner[2];       /* grows with every allocation */
byte refs[2] = {1, 1}; /* the home entry, and the window's */
bool fenced[2];      /* a free's fence has not passed */
byte free_ticket[4]; /* [2f + q]: the last work on frame f, by stream */

/* the window: what memory and the TLB show, and for whom */
byte entry, entry_owner;
byte tlb, tlb_owner;
byte shown;          /* record: frame + 1 */
byte window_stream, window_ticket;
byte dropping;       /* frame + 1 whose reference waits for the unmap's fence */
byte drop_stream, drop_ticket;
bool store_on_its_way;
byte store_frame, store_owner;

proctype rogue()
{
end:
    do
    :: atomic { entry != 0 && tlb == 0 -> tlb = entry; tlb_owner = entry_owner }
    :: atomic {
        tlb != 0 && !store_on_its_way -> store_on_its_way = true;
        store_frame = tlb - 1;
        store_owner = tlb_owner
    }
    :: atomic {
        store_on_its_way -> assert(owner[store_frame] == store_owner);
        store_on_its_way = false
    }
    od
}

proctype stream(byte q)
{
    byte f, o, ticket;

end:
    do
    :: queue[q] ? map, f, o, ticket ->
        done[1 - q] >= ticket;
        d_step { entry = f; entry_owner = o };
        tlb = 0;
        done[q]++
    :: queue[q] ? unmap, f, o, ticket ->
        done[1 - q] >= ticket;
        entry = 0;
#ifndef NO_INVALIDATE_ON_UNMAP
        tlb = 0;
#endif
#ifndef NO_MEMBAR_AFTER_INVALIDATE
        !store_on_its_way;
#endif
        done[q]++
    :: queue[q] ? work, f, o, ticket ->
        /* A kernel at the home address: it starts, and later its stores have landed. */
        assert(owner[f - 1] == o);
        assert(owner[f - 1] == o);
        done[q]++
    od
}

inline poll()
{
    if
    :: dropping != 0 && done[drop_stream] >= drop_ticket ->
        refs[dropping - 1]--;
        dropping = 0
    :: else
    fi;
    poll_frame(0);
    poll_frame(1)
}

inline poll_frame(f)
{
    if
    :: fenced[f] && done[0] >= free_ticket[2 * f] && done[1] >= free_ticket[2 * f + 1] ->
        fenced[f] = false
    :: else
    fi;
    if
    :: state[f] == DRAINING && !fenced[f] && refs[f] == 1 -> state[f] = FREE
    :: else
    fi
}

proctype host()
{
    byte n, f, q;

    do
    :: n == OPS -> break
    :: n < OPS ->
        atomic {
            select(f : 0 .. 1);
            select(q : 0 .. 1);
            poll();
            if
            :: state[f] == FREE ->
                state[f] = OWNED;
                owner[f]++;
                free_ticket[2 * f] = 0;
                free_ticket[2 * f + 1] = 0;
                queue[q] ! work, f + 1, owner[f], 0;
                sent[q]++;
                free_ticket[2 * f + q] = sent[q]
            :: state[f] == OWNED && shown == 0 && dropping == 0 ->
                queue[q] ! map, f + 1, owner[f], (window_stream == q -> 0 : window_ticket);
                sent[q]++;
                shown = f + 1;
#ifndef ALIAS_COUNT_NOT_TAKEN
                refs[f]++;
#endif
                window_stream = q;
                window_ticket = sent[q]
            :: shown != 0 ->
                queue[q] ! unmap, shown, 0, (window_stream == q -> 0 : window_ticket);
                sent[q]++;
                window_stream = q;
                window_ticket = sent[q];
#ifdef ALIAS_COUNT_NOT_TAKEN
                dropping = 0;
#elif defined(REFERENCE_DROPPED_BEFORE_FENCE)
                refs[shown - 1]--;
#else
                dropping = shown;
                drop_stream = q;
                drop_ticket = sent[q];
#endif
                shown = 0
            :: state[f] == OWNED ->
                state[f] = DRAINING;
#ifndef FRAME_REUSED_BEFORE_FENCE
                fenced[f] = true
#endif
            :: true
            fi;
            n++
        }
    od;
    done[0] == sent[0] && done[1] == sent[1]
}

init
{
    atomic {
        run rogue();
        run stream(0);
        run stream(1);
        run host()
    }
}
