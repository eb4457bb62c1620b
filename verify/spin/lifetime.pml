/* SPDX-License-Identifier: MIT */
/*
 * lifetime.pml - giving frames back to the driver: trim (src/vm/slabs.c) and calls of the program that take
 * pages away under us (src/hw/cuda/lifetime.c).
 *
 * One frame, shown at its home and through a window. Either the host trims, or the program makes a driver
 * call that frees the frame; then the driver gives it to another process. A kernel of this process keeps
 * accessing both addresses as long as they translate, stores land later.
 *
 * PROPERTY  nothing of this process reaches the frame once it is another's; both ways end.
 */
bool entry[2] = {true, true}; /* home, window: valid in memory */
bool cached[2];
bool on_its_way;              /* a store, translated and not landed */
bool foreign;                 /* the frame is another process's */
bool submitted, passed;       /* the batch that clears */

proctype user()
{
end:
    do
    :: atomic { entry[0] && !cached[0] -> cached[0] = true }
    :: atomic { entry[1] && !cached[1] -> cached[1] = true }
    :: atomic { (cached[0] || cached[1]) && !on_its_way -> on_its_way = true }
    :: atomic { on_its_way -> assert(!foreign); on_its_way = false }
    od
}

/* The queue that clears: vm's own stream, or the helper on behalf of the observer. */
proctype clearer()
{
    submitted;
    entry[0] = false;
#ifndef WINDOW_NOT_CLEARED
    entry[1] = false;
#endif
#ifndef NO_INVALIDATE_BEFORE_RELEASE
    d_step { cached[0] = false; cached[1] = false };
#endif
#ifndef NO_MEMBAR_BEFORE_RELEASE
    !on_its_way;
#endif
    passed = true
}

proctype host()
{
    if
    :: true -> /* trim: vm clears, waits, releases */
        submitted = true;
#ifndef RELEASE_WITHOUT_WAIT
        passed;
#endif
        foreign = true
    :: true -> /* a driver call of the program, seen before it is made */
#ifdef PASSED_ON_FIRST
        foreign = true;
        submitted = true;
        passed
#else
        submitted = true;
        passed;
        foreign = true
#endif
    fi
}

init
{
    atomic {
        run user();
        run clearer();
        run host()
    }
}
