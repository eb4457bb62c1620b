/* SPDX-License-Identifier: MIT */
/*
 * Threads that call everything at random on handles that all of them share, and destroy them under
 * each other's hands. A handle may be gone when a call gets it: then the call says so. What was
 * made is destroyed once, whoever tries; the device stays whole.
 *
 * Device work goes to a block and a stream of the thread's own: on a shared block it would be a use
 * after free of the program's.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/vec.h"
#include "support/runtime_rig.h"

enum { THREADS = 6, ROUNDS = 700, PAGE = 2 << 20, PAGES = 6, OWN_BYTES = 3 << 20 };

enum kind { STREAM, EVENT, POOL, MEM, RANGE, BLOCK, KINDS };

static const unsigned slots_of[KINDS] = {6, 6, 4, 6, 4, 24};
enum { SLOTS = 24 };

/* All threads' own. */
static struct {
    mb_device dev, peer;
    void *slot[KINDS][SLOTS]; /* atomic; a handle that may be destroyed already, or NULL */
    long made[KINDS];         /* atomic: successful creations less destructions */
    unsigned long calls, refused, hooked; /* atomic */
    unsigned bad;                         /* atomic: errors that no misuse of handles explains */
} all;

typedef MB_VEC(void *) handles;

struct worker {
    uint64_t state;
    handles left[KINDS]; /* taken out of their places, and not over with then */
    /* Of its own. The block is there from the beginning: an address that was shared once may be
     * freed by others at any time. */
    mb_stream stream;
    void *own;
    uint64_t seed; /* of its contents */
    pthread_t thread;
};

static uint64_t pick(struct worker *w, uint64_t bound)
{
    return mb_test_random_below(&w->state, bound);
}

static void count(long *number, long change)
{
    __atomic_fetch_add(number, change, __ATOMIC_RELAXED);
}

/* A handle of the kind, dead or alive, or NULL. */
static void *any(struct worker *w, enum kind kind)
{
    return __atomic_load_n(&all.slot[kind][pick(w, slots_of[kind])], __ATOMIC_ACQUIRE);
}

/* Mostly a shared stream, now and then the default one. */
static mb_stream any_stream(struct worker *w)
{
    return any(w, STREAM);
}

/* What a call may say when another thread was first, or when the device is full. */
static bool noted(enum mb_err err)
{
    __atomic_fetch_add(&all.calls, 1, __ATOMIC_RELAXED);
    if (!err)
        return true;
    __atomic_fetch_add(&all.refused, 1, __ATOMIC_RELAXED);
    switch (err) {
    case MB_ERR_INVALID:
    case MB_ERR_NOT_FOUND:
    case MB_ERR_DOUBLE_FREE:
    case MB_ERR_NO_MEMORY:
    case MB_ERR_NO_ADDRESS:
    case MB_ERR_LIMIT:
    case MB_ERR_BUSY:
    case MB_ERR_MAPPED:
    case MB_ERR_NOT_MAPPED:
    case MB_ERR_NOT_SUPPORTED:
        return false;
    default:
        if (!__atomic_fetch_add(&all.bad, 1, __ATOMIC_RELAXED))
            fprintf(stderr, "%s: %s\n", mb_error_name(err), mb_error_detail());
        return false;
    }
}

/* ------------------------------------------------------------ made and destroyed */

static enum mb_err make(struct worker *w, enum kind kind, void **out)
{
    mb_pool pool = any(w, POOL);
    uint64_t bytes = 1 + pick(w, UINT64_C(1) << (9 + pick(w, 14)));

    switch (kind) {
    case STREAM:
        return mb_stream_create(all.dev, (mb_stream *)out);
    case EVENT:
        return mb_event_create(all.dev, (mb_event *)out);
    case POOL:
        return mb_pool_create(all.dev, (mb_pool *)out);
    case MEM:
        return mb_mem_create(all.dev, (1 + pick(w, PAGES)) * PAGE, (mb_mem *)out);
    case RANGE:
        return mb_mem_reserve(all.dev, (uint64_t)PAGES * PAGE, 0, out);
    default:
        if (pool && pick(w, 3) == 0)
            return mb_pool_malloc_async(pool, bytes, any_stream(w), out);
        return pick(w, 4) ? mb_malloc_async(all.dev, bytes, any_stream(w), out)
                          : mb_malloc(all.dev, bytes, out);
    }
}

static enum mb_err destroy(struct worker *w, enum kind kind, void *handle)
{
    switch (kind) {
    case STREAM:
        return mb_stream_destroy(all.dev, handle);
    case EVENT:
        return mb_event_destroy(all.dev, handle);
    case POOL:
        return mb_pool_destroy(handle);
    case MEM:
        return mb_mem_release(all.dev, handle);
    case RANGE:
        return mb_mem_unreserve(all.dev, handle, (uint64_t)PAGES * PAGE);
    default:
        return w && pick(w, 4) ? mb_free_async(all.dev, handle, any_stream(w))
                               : mb_free(all.dev, handle);
    }
}

static bool destroy_noted(struct worker *w, enum kind kind, void *handle)
{
    if (!noted(destroy(w, kind, handle)))
        return false;
    count(&all.made[kind], -1);
    return true;
}

/* What stood in the place is destroyed, by us or by those who have looked at it before. */
static void replace(struct worker *w, enum kind kind)
{
    void *made = NULL;

    if (!noted(make(w, kind, &made)))
        return;
    count(&all.made[kind], 1);
    made = __atomic_exchange_n(&all.slot[kind][pick(w, slots_of[kind])], made, __ATOMIC_ACQ_REL);
    if (!made || (destroy_noted(w, kind, made) && kind != BLOCK))
        return;
    /* A block that is freed may still be open to the peer. */
    if (!MB_VEC_PUSH(&w->left[kind], made))
        __atomic_fetch_add(&all.bad, 1, __ATOMIC_RELAXED);
}

static void destroy_any(struct worker *w, enum kind kind)
{
    void *handle = any(w, kind);

    if (handle)
        (void)destroy_noted(w, kind, handle);
}

/* ------------------------------------------------------------ used */

static void use_mappings(struct worker *w)
{
    struct mb_map_op op = {.kind = (enum mb_map_kind)pick(w, MB_PROTECT + 1),
                           .prot = pick(w, 2) ? MB_PROT_READ_WRITE : MB_PROT_READ,
                           .mem = any(w, MEM)};
    struct mb_access access = {.dev = all.peer, .prot = pick(w, 2) ? MB_PROT_READ : MB_PROT_NONE};
    char *va = any(w, RANGE), *src = any(w, pick(w, 2) ? RANGE : BLOCK);
    uint64_t bytes = (1 + pick(w, PAGES)) * PAGE;

    if (!va)
        return;
    va += pick(w, PAGES) * PAGE;
    op.va = va;
    op.bytes = bytes;
    op.src = (void *)(((uintptr_t)src + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    switch (pick(w, 5)) {
    case 0:
        noted(mb_mem_map(all.dev, &op));
        break;
    case 1:
        noted(mb_mem_sleep(all.dev, va, bytes, any_stream(w)));
        break;
    case 2:
        noted(mb_mem_wake(all.dev, va, bytes, any_stream(w)));
        break;
    case 3:
        noted(mb_mem_set_access(all.dev, va, bytes, &access, 1));
        break;
    default:
        noted(mb_mem_map_async(all.dev, &op, 1, any_stream(w)));
        break;
    }
}

static void use_blocks(struct worker *w)
{
    struct mb_access access = {.dev = all.peer, .prot = pick(w, 2) ? MB_PROT_READ : MB_PROT_NONE};
    void *block = any(w, BLOCK);
    struct mb_pointer_info info;

    if (!block)
        return;
    switch (pick(w, 4)) {
    case 0:
        noted(mb_pointer_info(all.dev, block, &info));
        break;
    case 1:
        noted(mb_mem_set_access(all.dev, block, 1, &access, 1));
        break;
    case 2:
        noted(mb_free(all.peer, block)); /* whose is it? */
        break;
    default:
        noted(mb_record_stream(all.dev, block, any_stream(w)));
        break;
    }
}

/* What the others do must not show in it. */
static void use_own(struct worker *w)
{
    noted(mb_verify_async(all.dev, w->own, OWN_BYTES, w->seed, w->stream));
    w->seed = pick(w, UINT64_MAX);
    noted(mb_fill_async(all.dev, w->own, OWN_BYTES, w->seed, w->stream));
}

static void use_events(struct worker *w)
{
    mb_event event = any(w, EVENT);

    if (!event)
        return;
    noted(mb_event_record(all.dev, event, any_stream(w)));
    noted(mb_stream_wait_event(all.dev, any_stream(w), event));
}

static void use_pools(struct worker *w)
{
    mb_pool pool = any(w, POOL);
    uint64_t value;

    if (!pool)
        return;
    switch (pick(w, 4)) {
    case 0:
        noted(mb_pool_trim(pool, 0));
        break;
    case 1:
        noted(mb_pool_get(pool, MB_POOL_USED_CURRENT, &value));
        break;
    case 2:
        noted(mb_pool_set(pool, MB_POOL_REUSE_INTERNAL_DEPS, pick(w, 2)));
        break;
    default:
        noted(mb_pool_set(pool, MB_POOL_KEEP, pick(w, 8) == 0));
        break;
    }
}

static void hook(void *user, const struct mb_hook_event *event)
{
    (void)user;
    (void)event;
    __atomic_fetch_add(&all.hooked, 1, __ATOMIC_RELAXED);
}

static void look(struct worker *w)
{
    char text[256], path[] = P_tmpdir "/mb-shared-XXXXXX";
    struct mb_stats stats;
    size_t needed;
    int fd;

    switch (pick(w, 8)) {
    case 0:
        noted(mb_check(all.dev));
        break;
    case 1:
        noted(mb_stats_get(all.dev, &stats));
        break;
    case 2:
        noted(mb_stats_text(all.dev, MB_STATS_JSON, text, sizeof(text), &needed));
        break;
    case 3:
        noted(mb_set_event_hook(all.dev, pick(w, 2) ? hook : NULL, NULL));
        break;
    case 4:
        noted(mb_device_sync(all.dev));
        break;
    case 5:
        noted(mb_stream_sync(all.dev, any_stream(w)));
        break;
    case 6:
        noted(mb_check_tables(all.dev, false, NULL));
        break;
    default:
        fd = mkstemp(path);
        if (fd < 0)
            break;
        close(fd);
        noted(mb_snapshot(all.dev, path));
        unlink(path);
        break;
    }
}

static void *work(void *user)
{
    struct worker *w = user;

    for (unsigned i = 0; i < ROUNDS; i++) {
        enum kind kind = (enum kind)pick(w, KINDS);

        if (pick(w, 3))
            replace(w, pick(w, 2) ? BLOCK : kind);
        if (pick(w, 2))
            destroy_any(w, kind);
        use_blocks(w);
        use_events(w);
        use_pools(w);
        use_mappings(w);
        if (pick(w, 4) == 0)
            use_own(w);
        if (pick(w, 16) == 0)
            look(w);
    }
    return NULL;
}

/* ------------------------------------------------------------ the end */

/* The places' handles join those that were left. */
static void collect(struct worker *workers, handles *list, enum kind kind)
{
    for (unsigned i = 0; i < slots_of[kind]; i++)
        if (all.slot[kind][i])
            CHECK(MB_VEC_PUSH(list, all.slot[kind][i]));
    for (unsigned t = 0; t < THREADS; t++) {
        handles *left = &workers[t].left[kind];

        for (size_t i = 0; i < left->count; i++)
            CHECK(MB_VEC_PUSH(list, left->data[i]));
        MB_VEC_FREE(left);
    }
}

static void unmap(char *range)
{
    struct mb_access closed = {.dev = all.peer, .prot = MB_PROT_NONE};

    for (uint64_t page = 0; page < PAGES; page++) {
        struct mb_map_op op = {.kind = MB_UNMAP, .va = range + page * PAGE, .bytes = PAGE};

        noted(mb_mem_set_access(all.dev, op.va, PAGE, &closed, 1));
        noted(mb_mem_map(all.dev, &op));
    }
}

static void destroy_last(enum kind kind, void *handle)
{
    struct mb_access closed = {.dev = all.peer, .prot = MB_PROT_NONE};

    if (kind == BLOCK)
        noted(mb_mem_set_access(all.dev, handle, 1, &closed, 1));
    if (kind == RANGE)
        unmap(handle);
    if (kind == POOL)
        noted(mb_pool_set(handle, MB_POOL_KEEP, 0));
    (void)destroy_noted(NULL, kind, handle);
}

static void destroy_all(struct worker *workers)
{
    static const enum kind order[KINDS] = {BLOCK, RANGE, MEM, EVENT, STREAM, POOL};

    for (unsigned k = 0; k < KINDS; k++) {
        handles list = {0};

        collect(workers, &list, order[k]);
        for (size_t i = 0; i < list.count; i++)
            destroy_last(order[k], list.data[i]);
        MB_VEC_FREE(&list);
    }
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (all.made[kind])
            FAIL("kind %u: %ld more were made than destroyed", kind, all.made[kind]);
}

static void *close_peer(void *user)
{
    mb_close(user);
    return NULL;
}

static void run(const char *config, uint64_t seed)
{
    struct worker workers[THREADS];
    pthread_t thread;

    memset(&all, 0, sizeof(all));
    RT_OK(mb_open(0, config, &all.dev));
    RT_OK(mb_open(1, "backend:sim,device_memory:64m", &all.peer));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.state = seed + i, .stream = rt_stream(all.dev)};
        workers[i].own = rt_malloc(all.dev, OWN_BYTES, workers[i].stream);
        RT_OK(mb_fill_async(all.dev, workers[i].own, OWN_BYTES, 0, workers[i].stream));
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    CHECK_EQ(all.bad, 0);
    RT_OK(mb_set_event_hook(all.dev, NULL, NULL));
    rt_clean(all.dev);
    for (unsigned i = 0; i < THREADS; i++)
        RT_OK(mb_free_async(all.dev, workers[i].own, workers[i].stream));
    destroy_all(workers);
    CHECK_EQ(all.bad, 0);
    printf("COUNT calls of %d threads on shared handles %lu\n", THREADS, all.calls);
    printf("%lu were refused, %lu events went to the hook\n", all.refused, all.hooked);
    RT_OK(mb_check_tables(all.dev, false, NULL));
    CHECK_EQ(pthread_create(&thread, NULL, close_peer, all.peer), 0);
    rt_close(all.dev);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(roomy)
{
    run("backend:sim,device_memory:512m", mb_test_seed());
}

TEST(tight)
{
    run("backend:sim,device_memory:64m", mb_test_seed() + 100);
}

TEST(explored)
{
    run("backend:sim,device_memory:128m,explore:yes,policy:fresh", mb_test_seed() + 200);
}

TEST(checked)
{
    run("backend:sim,device_memory:128m,check:redzone|poison", mb_test_seed() + 300);
}
