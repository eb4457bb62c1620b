/* SPDX-License-Identifier: MIT */
/*
 * epoch.pml - when an address is fresh again under the fresh policy with deferred invalidates:
 * src/vm/va.c, src/vm/flush.c.
 *
 * Two windows of one slot, each in a group of its own, two streams. Maps never invalidate. An unmap only
 * clears; the window waits for it, is retired, is marked by flushes, and is fresh again once a flush that
 * marked it has passed. Flushes on different streams pass in any order.
 *
 * PROPERTY  a use reaches the mapping that the program made last; no stream waits for ever.
 */
#ifndef OPS
#define OPS 7
#endif
#define FLUSHES 3

mtype = {FRESH, LIVE, WAITS, RETIRED};
mtype = {map, unmap, use, flush};

/* kind, window, mapping, ticket of the other stream to wait for */
chan queue[2] = [OPS + 2] of {mtype, byte, byte, byte};
byte sent[2], done[2];

byte entry[2]; /* number of the mapping that memory shows; 0: cleared */
bool clearing[2]; /* a clear has been written and is not visible yet */
byte tlb[2];   /* number of the mapping that the TLB shows; 0: not cached */

mtype state[2] = {FRESH, FRESH};
byte last_stream[2], last_ticket[2];
byte mark[2]; /* flush that will make it fresh; 0: none yet */
byte flushes;
bool flush_open[FLUSHES + 1];
byte flush_stream[FLUSHES + 1], flush_ticket[FLUSHES + 1];

proctype walker()
{
end:
    do
    :: atomic { entry[0] != 0 && tlb[0] == 0 -> tlb[0] = entry[0] }
    :: atomic { entry[1] != 0 && tlb[1] == 0 -> tlb[1] = entry[1] }
    :: atomic { clearing[0] -> entry[0] = 0; clearing[0] = false }
    :: atomic { clearing[1] -> entry[1] = 0; clearing[1] = false }
    od
}

proctype stream(byte q)
{
    byte w, m, ticket;

end:
    do
    :: queue[q] ? map, w, m, ticket ->
        done[1 - q] >= ticket;
        atomic { !clearing[w]; entry[w] = m };
        done[q]++
    :: queue[q] ? unmap, w, m, ticket ->
        done[1 - q] >= ticket;
        clearing[w] = true;
#ifndef NO_BARRIER_BEFORE_FLUSH
        !clearing[w];
#endif
        done[q]++
    :: queue[q] ? use, w, m, ticket ->
        atomic {
            if
            :: tlb[w] == 0 -> tlb[w] = entry[w]
            :: else
            fi;
            assert(tlb[w] == m)
        };
        done[q]++
    :: queue[q] ? flush, w, m, ticket ->
        d_step { tlb[0] = 0; tlb[1] = 0 };
        done[q]++
    od
}

inline poll_window(w)
{
    if
    :: state[w] == WAITS && done[last_stream[w]] >= last_ticket[w] ->
#ifdef EPOCH_RECYCLED_WITHOUT_FLUSH
        state[w] = FRESH
#else
        state[w] = RETIRED
#endif
    :: else
    fi
}

inline recycle(w, n)
{
    if
#ifdef FLUSH_TAKES_LATER_ONES
    :: state[w] == RETIRED -> state[w] = FRESH; mark[w] = 0
#else
    :: state[w] == RETIRED && mark[w] == n -> state[w] = FRESH; mark[w] = 0
#endif
    :: else
    fi
}

#ifdef FLUSH_NOT_AWAITED
#define PASSED(n) true
#else
#define PASSED(n) (done[flush_stream[n]] >= flush_ticket[n])
#endif

inline poll_flush(n)
{
    if
    :: flush_open[n] && PASSED(n) ->
        flush_open[n] = false;
        recycle(0, n);
        recycle(1, n)
    :: else
    fi
}

inline mark_window(w)
{
    if
    :: mark[w] == 0 && state[w] == RETIRED -> mark[w] = flushes
#ifdef FLUSH_MARKS_OTHER_STREAMS
    :: mark[w] == 0 && state[w] == WAITS -> mark[w] = flushes
#else
    :: mark[w] == 0 && state[w] == WAITS && last_stream[w] == q -> mark[w] = flushes
#endif
    :: else
    fi
}

proctype host()
{
    byte n, w, q, mapping;

    do
    :: n >= OPS -> break
    :: n < OPS ->
        atomic {
            select(w : 0 .. 1);
            select(q : 0 .. 1);
            /* Windows in front of a flush in its stream's queue are moved before it. */
            poll_window(0);
            poll_window(1);
            poll_flush(1);
            poll_flush(2);
            poll_flush(3);
            if
            :: state[w] == FRESH ->
                mapping++;
                queue[q] ! map, w, mapping, 0;
                queue[q] ! use, w, mapping, 0;
                sent[q] = sent[q] + 2;
                state[w] = LIVE;
                last_stream[w] = q;
                last_ticket[w] = sent[q];
                n++
            :: state[w] == LIVE ->
                queue[q] ! unmap, w, 0, (last_stream[w] == q -> 0 : last_ticket[w]);
                sent[q]++;
                state[w] = WAITS;
                last_stream[w] = q;
                last_ticket[w] = sent[q]
            :: flushes < FLUSHES ->
                flushes++;
                queue[q] ! flush, 0, 0, 0;
                sent[q]++;
                flush_open[flushes] = true;
                flush_stream[flushes] = q;
                flush_ticket[flushes] = sent[q];
                mark_window(0);
                mark_window(1)
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
        run walker();
        run stream(0);
        run stream(1);
        run host()
    }
}
