/* SPDX-License-Identifier: MIT */
/*
 * lock.c - the record of held locks, per thread, and the rank check.
 *
 * A breach is our own bug, so it aborts: a deadlock that needs two threads to show is caught by
 * one.
 */
#undef NDEBUG /* this file holds the checks of those who ask for them */
#include "lock.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    HELD_MAX = 16,
};

/* Locks the calling thread holds, oldest first. */
static _Thread_local const struct mb_lock *held[HELD_MAX];
static _Thread_local unsigned held_count;

int mb__lock_init(struct mb_lock *lock, const char *name, int rank)
{
    lock->name = name;
    lock->rank = rank;
    return pthread_mutex_init(&lock->mutex, NULL);
}

void mb__lock_destroy(struct mb_lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

static void check_order(const struct mb_lock *lock)
{
    for (unsigned i = 0; i < held_count; i++) {
        if (held[i]->rank < lock->rank)
            continue;
        fprintf(
            stderr,
            "moonbright: lock order: taking %s (rank %d) while holding %s (rank %d); ranks must "
            "grow\n",
            lock->name, lock->rank, held[i]->name, held[i]->rank);
        abort();
    }
}

static void note_held(const struct mb_lock *lock)
{
    if (held_count == HELD_MAX) {
        fprintf(stderr, "moonbright: lock order: more than %d locks held, taking %s\n", HELD_MAX,
                lock->name);
        abort();
    }
    held[held_count++] = lock;
}

void mb__lock_checked(struct mb_lock *lock)
{
    check_order(lock);
    pthread_mutex_lock(&lock->mutex);
    note_held(lock);
}

bool mb__trylock_checked(struct mb_lock *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return false;
    note_held(lock);
    return true;
}

void mb__unlock_checked(struct mb_lock *lock)
{
    unsigned i = held_count;

    mb__lock_assert_held(lock, "mb__unlock");
    while (held[i - 1] != lock)
        i--;
    for (; i < held_count; i++)
        held[i - 1] = held[i];
    held_count--;
    pthread_mutex_unlock(&lock->mutex);
}

void mb__lock_forget_held(void)
{
    held_count = 0;
}

bool mb__lock_is_held(const struct mb_lock *lock)
{
    for (unsigned i = 0; i < held_count; i++)
        if (held[i] == lock)
            return true;
    return false;
}

void mb__lock_assert_held(const struct mb_lock *lock, const char *where)
{
    if (mb__lock_is_held(lock))
        return;
    fprintf(stderr, "moonbright: lock order: %s needs %s, which this thread does not hold\n", where,
            lock->name);
    abort();
}
