/* SPDX-License-Identifier: MIT */
/*
 * tables.pml - leaf tables that are built while windows are handed out: src/vm/pgt.c.
 *
 * vm's own stream writes the directory entry above a new leaf table; the first batch of a window in it runs
 * on a caller's stream and must not be used before the directory is visible. A second window in the same
 * table finds it existing in the record, though perhaps not yet on the device.
 *
 * PROPERTY  a use behind a map finds a directory and the leaf; no stream waits for ever.
 */
bool directory_posted, directory; /* written; visible to walkers */
bool leaf[2];                     /* slot of each window */
bool built;                       /* fence of the building */

proctype builder()
{
    directory_posted = true;
#ifndef NO_BARRIER_AFTER_DIRECTORY
    directory;
#endif
    built = true
}

proctype memory()
{
end:
    atomic { directory_posted -> directory = true }
}

proctype user(byte w)
{
#ifndef LEAF_BEFORE_DIRECTORY
#ifdef SECOND_WINDOW_DOES_NOT_WAIT
    if
    :: w == 0 -> built
    :: else
    fi;
#else
    built;
#endif
#endif
    leaf[w] = true;
    assert(directory && leaf[w])
}

init
{
    atomic {
        run builder();
        run memory();
        run user(0);
        run user(1)
    }
}
