/* SPDX-License-Identifier: MIT */
/*
 * pools.c - memory of captured graphs: PyTorch's private pools as pools with MB_POOL_KEEP.
 *
 * How       PyTorch begins a collection into a pool of some name, with a filter that tells which
 *           streams or threads it is for, ends it, and releases the pool once for each begin, when
 *           a graph is destroyed. Several graphs may share a name, one after the other. With the
 *           last release the pool is a pool like any other; it goes when its last block has.
 *           The newest collection whose filter agrees takes an allocation.
 * Locking   `lock` guards the list; filters run under it, as they do in PyTorch's own allocator.
 *           `collecting` is read without, so that programs without graphs pay one load. A pool that
 *           match() has returned stays until its collection ends, which PyTorch does not do while
 *           the captured code allocates.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "plugin.h"

struct pool {
    struct pool *next; /* newest collection first */
    int device;
    struct mb__torch_id id;
    mb_pool pool;
    unsigned uses;                  /* begins less releases; 0: retired */
    bool collecting;                /* filter is valid */
    struct mb__torch_filter filter; /* owned */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *list;              /* lock */
static _Atomic unsigned collecting;    /* pools with `collecting`; changed under lock */
static uint64_t in_use, retired_count; /* lock */

/* lock held. The link to the pool, or to the list's end. */
static struct pool **find(int device, struct mb__torch_id id)
{
    struct pool **link = &list;

    while (*link && ((*link)->device != device || (*link)->id.first != id.first ||
                     (*link)->id.second != id.second || !(*link)->uses))
        link = &(*link)->next;
    return link;
}

static enum mb_err make(int device, struct mb__torch_id id, struct pool **out)
{
    struct pool *made = calloc(1, sizeof(*made));
    mb_device dev = NULL;
    enum mb_err err;

    if (!made)
        return mb__torch_fail(MB_ERR_HOST_MEMORY, "no host memory for a graph's pool");
    err = mb__torch_device(device, &dev);
    if (err)
        goto undo_alloc;
    err = mb_pool_create(dev, &made->pool);
    if (err) {
        (void)mb__torch_fail(err, "a pool for a graph on device %d: %s", device, mb_error_detail());
        goto undo_alloc;
    }
    err = mb_pool_set(made->pool, MB_POOL_KEEP, 1);
    if (err) {
        (void)mb__torch_fail(err, "a pool for a graph on device %d: %s", device, mb_error_detail());
        goto undo_pool;
    }
    made->device = device;
    made->id = id;
    *out = made;
    return MB_OK;
undo_pool:
    (void)mb_pool_destroy(made->pool);
undo_alloc:
    free(made);
    return err;
}

enum mb_err mb__torch_pool_begin(int device, struct mb__torch_id id,
                                 const struct mb__torch_filter *filter)
{
    struct pool **link, *pool;
    enum mb_err err = MB_OK;

    if (mb__torch_forked()) {
        filter->destroy(filter->user);
        return mb__torch_in_child();
    }
    pthread_mutex_lock(&lock);
    link = find(device, id);
    pool = *link;
    if (pool && pool->collecting) {
        err = mb__torch_fail(MB_ERR_BUSY,
                             "pool (%llu, %llu) of device %d collects already; end "
                             "that first",
                             id.first, id.second, device);
    } else if (pool) {
        *link = pool->next; /* it goes to the front */
    } else {
        err = make(device, id, &pool);
        in_use += !err;
    }
    if (pool && !err) {
        pool->uses++;
        pool->filter = *filter;
        pool->collecting = true;
        pool->next = list;
        list = pool;
        atomic_fetch_add(&collecting, 1);
    }
    pthread_mutex_unlock(&lock);
    if (err)
        filter->destroy(filter->user);
    return err;
}

enum mb_err mb__torch_pool_end(int device, struct mb__torch_id id)
{
    struct pool *pool;
    enum mb_err err = MB_OK;

    if (mb__torch_forked())
        return mb__torch_in_child();
    pthread_mutex_lock(&lock);
    pool = *find(device, id);
    if (pool && pool->collecting) {
        pool->collecting = false;
        atomic_fetch_sub(&collecting, 1);
        pool->filter.destroy(pool->filter.user);
    } else {
        err = mb__torch_fail(MB_ERR_NOT_FOUND, "pool (%llu, %llu) of device %d does not collect",
                             id.first, id.second, device);
    }
    pthread_mutex_unlock(&lock);
    return err;
}

/* lock held. Destroys the retired pools whose blocks are all gone. */
static void sweep(void)
{
    struct pool **link = &list;

    while (*link) {
        struct pool *pool = *link;

        if (pool->uses || mb_pool_destroy(pool->pool)) {
            link = &pool->next;
            continue;
        }
        *link = pool->next;
        free(pool);
        retired_count--;
    }
}

void mb__torch_pool_sweep(void)
{
    if (mb__torch_forked())
        return;
    pthread_mutex_lock(&lock);
    if (retired_count)
        sweep();
    pthread_mutex_unlock(&lock);
}

enum mb_err mb__torch_pool_release(int device, struct mb__torch_id id)
{
    struct pool *pool;
    enum mb_err err = MB_OK;

    if (mb__torch_forked())
        return mb__torch_in_child();
    pthread_mutex_lock(&lock);
    pool = *find(device, id);
    if (!pool) {
        err = mb__torch_fail(MB_ERR_NOT_FOUND, "device %d has no pool (%llu, %llu)", device,
                             id.first, id.second);
    } else if (pool->uses == 1 && pool->collecting) {
        err = mb__torch_fail(MB_ERR_BUSY, "pool (%llu, %llu) of device %d still collects", id.first,
                             id.second, device);
    } else if (!--pool->uses) {
        in_use--;
        retired_count++;
        (void)mb_pool_set(pool->pool, MB_POOL_KEEP, 0);
        sweep();
    }
    pthread_mutex_unlock(&lock);
    return err;
}

bool mb__torch_pool_match(int device, void *stream, mb_pool *out)
{
    bool found = false;

    if (!atomic_load_explicit(&collecting, memory_order_acquire) || mb__torch_forked())
        return false;
    pthread_mutex_lock(&lock);
    for (struct pool *pool = list; pool && !found; pool = pool->next) {
        if (!pool->collecting || pool->device != device ||
            !pool->filter.match(pool->filter.user, stream))
            continue;
        *out = pool->pool;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void mb__torch_pool_counts(uint64_t *pools, uint64_t *retired)
{
    *pools = *retired = 0;
    if (mb__torch_forked())
        return;
    pthread_mutex_lock(&lock);
    *pools = in_use;
    *retired = retired_count;
    pthread_mutex_unlock(&lock);
}
