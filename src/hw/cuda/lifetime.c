/* SPDX-License-Identifier: MIT */
/*
 * lifetime.c - page tables are put in order before anything under them goes away.
 *
 * resets    The observer tells, on libcuda's thread, before libcuda unregisters the address space,
 *           unmaps one of our ranges, frees one of our objects or closes its files. Then: driver's
 *           entries back, invalidate, helpers stopped, views dropped, device lost. libcuda's call
 *           goes on after that.
 * exit      atexit, registered after libcuda's own handlers and so run before them.
 * signals   Only where the default action would end the process, and then it does, after the same
 *           steps. A process that handles a signal itself keeps its handler and is not touched.
 * SIGKILL   needs nothing: the kernel ends the channels before it takes the address space down.
 * fork      The child is disabled: no view is inherited, and every handler looks at a flag first.
 * Locking   `registry_lock`; libcuda is never called under it. Signal handlers take no lock: they
 *           walk the list, which only grows at its head and shrinks in mb__cuda_unregister().
 */
#include "hw/cuda/cuda.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/lock.h"
#include "base/log.h"

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb_cuda *registry;
static volatile sig_atomic_t forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool mb__cuda_forked(void)
{
    return forked != 0;
}

static void in_child(void)
{
    forked = 1;
}

/* ------------------------------------------------------------ losing a context */

static bool overlaps(uint64_t base, uint64_t bytes, uint64_t start, uint64_t length)
{
    return base < start + length && start < base + (bytes ? bytes : 1);
}

static bool range_matters(struct mb_cuda *dev, uint64_t base, uint64_t bytes)
{
    bool hit = dev->control_va && overlaps(base, bytes, dev->control_va, 2 * MB_FRAME_BYTES);

    pthread_mutex_lock(&dev->table_lock);
    for (struct mb_cuda_window *w = dev->windows; w && !hit; w = w->next) {
        hit = overlaps(base, bytes, w->va.addr, w->pieces * MB_CUDA_PIECE_BYTES) ||
              (w->app_va && overlaps(base, bytes, w->app_va, w->pieces * 4096ull));
    }
    for (struct mb_cuda_slab *s = dev->slabs; s && !hit; s = s->next)
        hit = !s->released && overlaps(base, bytes, s->home.addr, s->bytes);
    pthread_mutex_unlock(&dev->table_lock);
    return hit;
}

static bool object_matters(struct mb_cuda *dev, nvrm_handle client, nvrm_handle object)
{
    bool hit = client == dev->seen.client &&
               (object == client || object == dev->seen.device || object == dev->seen.vaspace ||
                object == dev->control_memory[0] || object == dev->control_memory[1]);

    pthread_mutex_lock(&dev->table_lock);
    for (struct mb_cuda_slab *s = dev->slabs; s && !hit; s = s->next)
        hit = s->memory && client == s->memory_client && object == s->memory;
    pthread_mutex_unlock(&dev->table_lock);
    return hit;
}

/* Another device that is open here: what it loses at our addresses is a peer's access. A number
 * that belongs to no open device is not understood, and counts as ours. */
static bool is_of_other(const struct mb_cuda *dev, const uint8_t *uuid)
{
    if (!uuid || !memcmp(uuid, dev->uuid, sizeof(dev->uuid)))
        return false;
    for (const struct mb_cuda *other = registry; other; other = other->registry_next)
        if (other != dev && !memcmp(uuid, other->uuid, sizeof(other->uuid)))
            return true;
    return false;
}

static bool matters(struct mb_cuda *dev, const struct mb_cuda_loss *loss)
{
    switch (loss->kind) {
    case MB_LOSS_SPACE:
        return !memcmp(loss->uuid, dev->uuid, sizeof(dev->uuid));
    case MB_LOSS_RANGE:
        return !is_of_other(dev, loss->uuid) && range_matters(dev, loss->base, loss->bytes);
    case MB_LOSS_OBJECT:
        return object_matters(dev, loss->client, loss->object);
    case MB_LOSS_FILE:
        return loss->fd == dev->seen.uvm_fd || loss->fd == dev->seen.ctl_fd;
    }
    return false;
}

/* A submission in flight holds the lock; it ends by itself, as the context still exists. */
static void stop_queues(struct mb_cuda *dev)
{
    for (struct mb_hw_stream *s = dev->streams; s; s = s->next) {
        for (unsigned try = 0; s->queue && try < 1000; try++) {
            if (pthread_mutex_trylock(&s->lock)) {
                usleep(100);
                continue;
            }
            mb__cuda_queue_stop(s->queue);
            pthread_mutex_unlock(&s->lock);
            break;
        }
    }
}

static void lose_context(struct mb_cuda *dev, const char *why)
{
    unsigned changed;
    bool ok;

    (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "%s", why);
    atomic_store(&dev->gone, true);
    stop_queues(dev);
    changed = mb__cuda_restore_windows(dev);
    ok = mb__cuda_rescue_invalidate(dev, 100000);
    for (struct mb_cuda_window *w = dev->windows; w; w = w->next)
        mb__cuda_unmap_tables(dev, w);
    mb__log(MB_LOG_INFO, "cuda", "device %d: %s; %u entries put back, invalidate %s", dev->ordinal,
            why, changed, ok ? "done" : "not answered");
}

void mb__cuda_guard(const struct mb_cuda_loss *loss)
{
    static const char *const why[] = {
        [MB_LOSS_SPACE] = "the application destroyed or reset the CUDA context",
        [MB_LOSS_RANGE] = "the application unmapped addresses that MoonBright owns",
        [MB_LOSS_OBJECT] = "the application destroyed or reset the CUDA context",
        [MB_LOSS_FILE] = "libcuda is shutting down",
    };

    if (forked)
        return;
    pthread_mutex_lock(&registry_lock);
    for (struct mb_cuda *dev = registry; dev; dev = dev->registry_next) {
        if (dev->tables != MB_CUDA_DRIVER && !atomic_load(&dev->gone) && matters(dev, loss))
            lose_context(dev, why[loss->kind]);
    }
    pthread_mutex_unlock(&registry_lock);
}

/* ------------------------------------------------------------ exits */

static void put_all_back(unsigned timeout_us)
{
    for (struct mb_cuda *dev = registry; dev; dev = dev->registry_next) {
        if (dev->tables == MB_CUDA_DRIVER)
            continue;
        if (mb__cuda_restore_windows(dev))
            (void)mb__cuda_rescue_invalidate(dev, timeout_us);
    }
}

static void at_exit(void)
{
    if (forked)
        return;
    pthread_mutex_lock(&registry_lock);
    for (struct mb_cuda *dev = registry; dev; dev = dev->registry_next) {
        int expected = MB_OK;

        /* As in mb__cuda_lose(): another thread may be losing it now, and writes the text. */
        if (atomic_compare_exchange_strong(&dev->lost, &expected, MB_ERR_INTERNAL)) {
            strcpy(dev->lost_text, "the process is exiting");
            dev->exiting = true;
            atomic_store(&dev->lost, MB_ERR_DEVICE_LOST);
        }
        atomic_store(&dev->gone, true);
        if (dev->tables != MB_CUDA_DRIVER)
            stop_queues(dev);
    }
    put_all_back(100000);
    /* Not freed: a thread that goes on may be in the rescue channel's calls. */
    for (struct mb_cuda *dev = registry; dev; dev = dev->registry_next)
        mb__cuda_refill_rest(dev);
    pthread_mutex_unlock(&registry_lock);
}

static void on_signal(int number)
{
    int saved = errno;

    mb__lock_forget_held();
    if (!forked)
        put_all_back(100000);
    errno = saved;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void take_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGABRT,
                                  SIGSEGV, SIGBUS, SIGILL, SIGFPE};

    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction old, ours;

        if (sigaction(numbers[i], NULL, &old) || old.sa_handler != SIG_DFL)
            continue;
        memset(&ours, 0, sizeof(ours));
        ours.sa_handler = on_signal;
        /* A second signal during the handler, or a fault in it, ends the process at once. */
        ours.sa_flags = (int)SA_RESETHAND;
        sigemptyset(&ours.sa_mask);
        (void)sigaction(numbers[i], &ours, NULL);
    }
}

static void init_once(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void mb__cuda_lifetime_init(void)
{
    pthread_once(&once, init_once);
}

/* Exit handlers and signals are taken with the first device, after libcuda has been initialised. */
void mb__cuda_register(struct mb_cuda *dev)
{
    static bool first = true;

    pthread_mutex_lock(&registry_lock);
    if (first) {
        (void)atexit(at_exit);
        take_signals();
    }
    first = false;
    dev->registry_next = registry;
    __atomic_store_n(&registry, dev, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&registry_lock);
}

void mb__cuda_unregister(struct mb_cuda *dev)
{
    struct mb_cuda **at;

    pthread_mutex_lock(&registry_lock);
    for (at = &registry; *at && *at != dev; at = &(*at)->registry_next)
        ;
    if (*at)
        __atomic_store_n(at, dev->registry_next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&registry_lock);
}
