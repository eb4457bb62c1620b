/* SPDX-License-Identifier: MIT */
/*
 * lock.h - mutexes with ranks.
 *
 * A thread that holds a lock may only take locks of a higher rank: runtime, then vm, then hw, then
 * leaf locks, below which nothing is locked. Builds with assertions (NDEBUG not defined) check this
 * at every lock and abort with both names; other builds compile to the bare mutex.
 *
 * A condition variable is used with `mutex` directly; the lock counts as held across the wait.
 */
#ifndef MB_BASE_LOCK_H
#define MB_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>

enum mb_lock_rank {
    MB_RANK_RUNTIME = 10,
    MB_RANK_VM = 20,
    MB_RANK_HW = 30,
    MB_RANK_LEAF = 40,
};

struct mb_lock {
    pthread_mutex_t mutex;
    const char *name; /* static string */
    int rank;         /* enum mb_lock_rank or a value between; constant */
};

/* 0 or an errno of pthread_mutex_init(). `name` must live as long as the lock. */
int mb__lock_init(struct mb_lock *lock, const char *name, int rank);
void mb__lock_destroy(struct mb_lock *lock);

/* The checked forms; present in every build, called by those with assertions. */
void mb__lock_checked(struct mb_lock *lock);
bool mb__trylock_checked(struct mb_lock *lock);
void mb__unlock_checked(struct mb_lock *lock);
/* For a signal handler after which the process ends: the thread's own code, and with it the order
 * in which that took its locks, does not go on. They stay locked: the handler must need none. */
void mb__lock_forget_held(void);
/* Does the calling thread hold it, by the checked forms' record? */
bool mb__lock_is_held(const struct mb_lock *lock);

#ifdef NDEBUG
static inline void mb__lock(struct mb_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
}
static inline bool mb__trylock(struct mb_lock *lock)
{
    return pthread_mutex_trylock(&lock->mutex) == 0;
}
static inline void mb__unlock(struct mb_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
#define mb__assert_held(lock) ((void)(lock))
#else
static inline void mb__lock(struct mb_lock *lock)
{
    mb__lock_checked(lock);
}
/* May be tried against the order: it cannot wait. */
static inline bool mb__trylock(struct mb_lock *lock)
{
    return mb__trylock_checked(lock);
}
static inline void mb__unlock(struct mb_lock *lock)
{
    mb__unlock_checked(lock);
}
/* Aborts with the lock's name when the caller does not hold it. */
void mb__lock_assert_held(const struct mb_lock *lock, const char *where);
#define mb__assert_held(lock) mb__lock_assert_held((lock), __func__)
#endif

#endif
