/* SPDX-License-Identifier: MIT */
/*
 * queues.pml - batches that a helper writes for streams: isolated tables, src/hw/cuda/isolated.c.
 *
 * Two streams. Each may work, wait for a word that the other one writes, write such a word, and submit a
 * batch: the stream announces that it has come there, its helper queue waits for that, writes the entry,
 * flushes, invalidates and answers, the stream waits for the answer. Queues of different streams share a
 * copy engine; a queue that waits gives the engine up.
 *
 * PROPERTY  a program whose streams do not wait for each other in a circle ends; an access before the
 *           batch sees the old mapping, one behind it the new one.
 */
#ifndef OPS
#define OPS 4
#endif
#ifdef SHARED_QUEUE
#define QUEUE(q) 0
#else
#define QUEUE(q) (q)
#endif

mtype = {batch, use, await_word, set_word};

/* work of a stream: kind, number of the batch or mapping shown */
chan stream_work[2] = [3 * OPS] of {mtype, byte};
/* helper queues: stream, number of the batch */
chan helper_work[2] = [OPS] of {byte, byte};

byte announced[2], answered[2]; /* by stream: numbers of batches */
byte word[2];     /* word[q] is written by stream q, the other one waits for it */
byte entry[2];    /* a slot for each stream: the mapping's number */
bool copying[2];  /* the entry's copy has been started and has not arrived */
byte copy_value[2];
byte tlb[2];      /* mapping cached; 255: nothing */
bool engine_held; /* by a queue that works, or that waits without giving it up */

/* What the host has enqueued so far, so that waits name things that exist. */
byte batches[2], words[2], awaited[2];
byte ended;

proctype memory()
{
end:
    do
    :: atomic { copying[0] -> entry[0] = copy_value[0]; copying[0] = false }
    :: atomic { copying[1] -> entry[1] = copy_value[1]; copying[1] = false }
    :: atomic { tlb[0] == 255 && entry[0] != 0 -> tlb[0] = entry[0] }
    :: atomic { tlb[1] == 255 && entry[1] != 0 -> tlb[1] = entry[1] }
    od
}

proctype helper(byte h)
{
    byte q, n;

end:
    do
    :: helper_work[h] ? q, n ->
#ifdef ENGINE_HELD_WHILE_WAITING
        atomic { !engine_held -> engine_held = true };
#ifndef NO_ANNOUNCEMENT
        announced[q] >= n;
#endif
#else
#ifndef NO_ANNOUNCEMENT
        announced[q] >= n;
#endif
        atomic { !engine_held -> engine_held = true };
#endif
        atomic { !copying[q] -> copying[q] = true; copy_value[q] = n };
#ifndef ANSWER_BEFORE_COPY_LANDED
        !copying[q];
#endif
        tlb[q] = 255;
        answered[q] = n;
        engine_held = false
    od
}

proctype stream(byte q)
{
    byte n;

end:
    do
    :: stream_work[q] ? batch, n ->
        announced[q] = n;
#ifndef STREAM_DOES_NOT_WAIT
end_batch:
        answered[q] >= n
#endif
    :: stream_work[q] ? use, n ->
        atomic {
            if
            :: tlb[q] == 255 -> tlb[q] = entry[q]
            :: else
            fi;
            assert(tlb[q] == n)
        }
    :: stream_work[q] ? await_word, n ->
end_word:
        word[1 - q] >= n
    :: stream_work[q] ? set_word, n ->
        word[q] = n
    od
}

inline enqueue(q)
{
    if
    :: batches[q] < 2 ->
        batches[q]++;
        helper_work[QUEUE(q)] ! q, batches[q];
        stream_work[q] ! batch, batches[q];
        stream_work[q] ! use, batches[q]
    :: words[q] < 2 ->
        words[q]++;
        stream_work[q] ! set_word, words[q]
    /* A word that will be written: its write stands in the other stream already, or is promised and comes
     * next there, in front of everything that could wait for this stream. */
    :: awaited[q] < words[1 - q] ->
        awaited[q] = words[1 - q];
        stream_work[q] ! await_word, awaited[q]
    :: words[1 - q] < 2 && batches[1 - q] < 2 ->
        words[1 - q]++;
        stream_work[q] ! await_word, words[1 - q];
        awaited[q] = words[1 - q];
        batches[q]++;
        if
        :: batches[q] <= 2 ->
            helper_work[QUEUE(q)] ! q, batches[q];
            stream_work[q] ! batch, batches[q];
            stream_work[q] ! use, batches[q]
        :: else -> batches[q]--
        fi;
        batches[1 - q]++;
        helper_work[QUEUE(1 - q)] ! 1 - q, batches[1 - q];
        stream_work[1 - q] ! batch, batches[1 - q];
        stream_work[1 - q] ! use, batches[1 - q];
        stream_work[1 - q] ! set_word, words[1 - q]
    :: true
    fi
}

proctype host()
{
    byte n, q;

    do
    :: n == OPS -> break
    :: n < OPS ->
        atomic {
            select(q : 0 .. 1);
            enqueue(q);
            n++
        }
    od;
    /* Everything ends: a wait here that never comes true is the deadlock that the checker reports. */
    answered[0] == batches[0] && answered[1] == batches[1] && word[0] == words[0] &&
        word[1] == words[1] && empty(stream_work[0]) && empty(stream_work[1])
}

init
{
    atomic {
        tlb[0] = 255;
        tlb[1] = 255;
        run memory();
        run helper(0);
        run helper(1);
        run stream(0);
        run stream(1);
        run host()
    }
}
