/* SPDX-License-Identifier: MIT */
/*
 * program.c - a program that knows CUDA's driver interface only, on the FAKE of tests/fake.
 *
 *     program WAY CASE
 *
 * WAY is how it finds the functions (find.c). With libmoonbright_preload.so in front, each case
 * must find what CUDA promises, and says which of the driver's functions were reached meanwhile.
 * The test script says which cases run with which $MOONBRIGHT_PRELOAD.
 */
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static void *primary;

static void start(void)
{
    OK(cu.cuInit(0));
    OK(cu.cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cu.cuCtxSetCurrent(primary));
}

/* Was the memory MoonBright's? The driver's own function was not reached then. */
static cu_ptr alloc(size_t bytes)
{
    uint64_t before = fake_cuda_count("cuMemAlloc_v2");
    cu_ptr ptr = 0;

    OK(cu.cuMemAlloc_v2(&ptr, bytes));
    MUST(ptr && ptr % 512 == 0);
    MUST(fake_cuda_count("cuMemAlloc_v2") == before);
    return ptr;
}

/* ------------------------------------------------------------ contents */

static void blocks(void)
{
    enum { N = 24, ROUNDS = 300 };
    unsigned char *host = malloc(4 * MIB), *back = malloc(4 * MIB);
    cu_ptr ptr[N] = {0};
    size_t bytes[N];
    unsigned state = 1;

    MUST(host && back);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = (state = state * 1103515245u + 12345u) >> 12, slot = i % N;

        if (ptr[slot]) {
            OK(cu.cuMemcpyDtoH_v2(back, ptr[slot], bytes[slot]));
            for (size_t k = 0; k < bytes[slot]; k++)
                MUST(back[k] == (unsigned char)(slot + k));
            OK(cu.cuMemFree_v2(ptr[slot]));
            ptr[slot] = 0;
            continue;
        }
        bytes[slot] = 1 + i % (4 * MIB);
        for (size_t k = 0; k < bytes[slot]; k++)
            host[k] = (unsigned char)(slot + k);
        ptr[slot] = alloc(bytes[slot]);
        OK(cu.cuMemcpyHtoD_v2(ptr[slot], host, bytes[slot]));
    }
    for (unsigned slot = 0; slot < N; slot++) {
        if (ptr[slot])
            OK(cu.cuMemFree_v2(ptr[slot]));
    }
    MUST(fake_cuda_count("cuMemFree_v2") == 0);
    free(host);
    free(back);
}

/* So many that every table grows; freed in another order, some of them by a reset. */
static void many(void)
{
    enum { N = 20000 };
    static cu_ptr ptr[N];

    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < N; i++)
            ptr[i] = alloc(512 + i % 700);
        for (unsigned i = 0; i < N; i += 1 + round)
            OK(cu.cuMemFreeAsync(ptr[i * 7919u % N], NULL));
        MUST(cu.cuMemFreeAsync(ptr[0], NULL) == 1);
        if (round)
            OK(cu.cuDevicePrimaryCtxReset_v2(0));
        for (unsigned i = 0; round && i < N; i++)
            MUST(cu.cuMemFree_v2(ptr[i]) == 1);
    }
}

static void pitch(void)
{
    size_t bytes = 0;
    cu_ptr ptr = 0, bad = 77;

    OK(cu.cuMemAllocPitch_v2(&ptr, &bytes, 1000, 30, 4));
    MUST(bytes == 1024 && fake_cuda_count("cuMemAllocPitch_v2") == 0);
    OK(cu.cuMemsetD8_v2(ptr, 3, bytes * 30));
    OK(cu.cuMemFree_v2(ptr));
    /* What the driver refuses, the driver refuses. */
    MUST(cu.cuMemAllocPitch_v2(&bad, &bytes, 1000, 30, 3) == 1 && bad == 77);
    MUST(cu.cuMemAlloc_v2(&bad, 0) == 1 && bad == 77);
    MUST(cu.cuMemFree_v2(12345) == 1);
    OK(cu.cuMemFree_v2(0));
}

/* ------------------------------------------------------------ streams */

static void async_on(void *stream, int (*take)(cu_ptr *, size_t, void *),
                     int (*give)(cu_ptr, void *))
{
    unsigned char back[64];

    for (unsigned i = 0; i < 40; i++) {
        cu_ptr a = 0, b = 0;

        OK(take(&a, 100 + i * 70000, stream));
        OK(take(&b, 64, stream));
        OK(cu.cuMemsetD8_v2(a, (unsigned char)i, 64));
        OK(cu.cuMemsetD8_v2(b, (unsigned char)~i, 64));
        OK(cu.cuMemcpyDtoH_v2(back, a, 64));
        MUST(back[63] == (unsigned char)i);
        OK(give(a, stream));
        OK(give(b, stream));
    }
}

static void *thread(void *user)
{
    OK(cu.cuCtxSetCurrent(primary));
    async_on(user, cu.cuMemAllocAsync_ptsz, cu.cuMemFreeAsync_ptsz);
    async_on((void *)2, cu.cuMemAllocAsync, cu.cuMemFreeAsync);
    return NULL;
}

static void async(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    void *stream = NULL;
    cu_ptr left = 0;

    async_on(NULL, cu.cuMemAllocAsync, cu.cuMemFreeAsync);
    async_on((void *)1, cu.cuMemAllocAsync, cu.cuMemFreeAsync);
    OK(cu.cuStreamCreate(&stream, 1));
    async_on(stream, cu.cuMemAllocAsync, cu.cuMemFreeAsync);
    OK(cu.cuMemAllocAsync(&left, MIB, stream));
    OK(cu.cuStreamDestroy_v2(stream));
    OK(cu.cuMemFree_v2(left)); /* also allowed for memory of a pool */
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < THREADS; i++)
            OK(pthread_create(&threads[i], NULL, thread, NULL));
        for (unsigned i = 0; i < THREADS; i++)
            OK(pthread_join(threads[i], NULL));
    }
    MUST(fake_cuda_count("cuMemAllocAsync") == 0 && fake_cuda_count("cuMemAllocAsync_ptsz") == 0);
    MUST(fake_cuda_count("cuMemFreeAsync") == 0 && fake_cuda_count("cuMemFreeAsync_ptsz") == 0);
    /* Each thread's default stream is another one: threads of one moment have a helper each, and
     * later threads take them over. MoonBright has a stream or two of its own. */
    MUST(fake_cuda_count("cuEventCreate") <= THREADS);
    MUST(fake_cuda_count("cuEventRecord") >= (uint64_t)2 * THREADS * 40 * 4);
}

/* An allocation that is captured is a node of the graph: the driver's. */
static void capture(void)
{
    void *stream = NULL;
    cu_ptr node = 0, block = alloc(MIB);

    OK(cu.cuStreamCreate(&stream, 0));
    fake_cuda_capture(stream);
    OK(cu.cuMemAllocAsync(&node, MIB, stream));
    MUST(fake_cuda_count("cuMemAllocAsync") == 1);
    OK(cu.cuMemFreeAsync(node, stream));
    MUST(fake_cuda_count("cuMemFreeAsync") == 1);
    MUST(cu.cuMemFreeAsync(block, stream) == 1); /* no node of this graph */
    MUST(fake_cuda_count("cuMemFreeAsync") == 1);
    fake_cuda_capture(NULL);
    OK(cu.cuMemFreeAsync(block, stream));
    MUST(cu.cuMemFreeAsync(block, stream) == 1); /* twice */
}

/* ------------------------------------------------------------ kinds of pointers */

static void check_block(cu_ptr base, size_t bytes, cu_ptr ptr)
{
    cu_ptr start = 0, range = 0;
    size_t size = 0, length = 0;
    unsigned type = 0;
    int ordinal = -1, host = 0;
    unsigned char managed = 9, mapped = 9;
    void *ctx = NULL, *handle = NULL, *nothing = &handle;
    int list[] = {2, 9, 4, 8, 1, 11};
    void *out[] = {&type, &ordinal, &nothing, &managed, &ctx, &range};

    OK(cu.cuMemGetAddressRange_v2(&start, &size, ptr));
    MUST(start == base && size == bytes);
    OK(cu.cuMemGetAddressRange_v2(NULL, &size, ptr));
    OK(cu.cuPointerGetAttribute(&type, 2, ptr));
    MUST(type == 2);
    OK(cu.cuPointerGetAttribute(&start, 3, ptr));
    MUST(start == ptr);
    MUST(cu.cuPointerGetAttribute(&host, 4, ptr) == 1);
    OK(cu.cuPointerGetAttribute(&managed, 8, ptr));
    OK(cu.cuPointerGetAttribute(&mapped, 13, ptr));
    OK(cu.cuPointerGetAttribute(&start, 11, ptr));
    OK(cu.cuPointerGetAttribute(&length, 12, ptr));
    MUST(!managed && mapped == 1 && start == base && length == bytes);
    OK(cu.cuPointerGetAttributes(6, list, out, ptr));
    MUST(type == 2 && !ordinal && !nothing && !managed && ctx == primary && range == base);
    /* As memory of cuMemAlloc in CUDA: no handle, nobody's mapping. */
    MUST(cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) == 1);
    MUST(cu.cuMemUnmap(ptr, 2 * MIB) == 1 && cu.cuMemAddressFree(ptr, 2 * MIB) == 1);
    MUST(cu.cuMemSetAccess(ptr, 2 * MIB, &(struct access){{1, 0}, 3}, 1) == 1);
}

/* Registration for RDMA: the driver's answer where its record is true. */
static void check_shareable(cu_ptr base, size_t bytes, bool home)
{
    uint64_t tokens[2], id = 0, id2 = 0;
    int file = -1, refused = home ? 0 : 801;
    char handle[64];

    MUST(cu.cuPointerGetAttribute(tokens, 5, base) == refused);
    MUST(cu.cuMemGetHandleForAddressRange(&file, base, 2 * MIB, 1, 0) == refused);
    MUST(file == (home ? 9 : -1));
    MUST(cu.cuMemGetHandleForAddressRange(&file, base, bytes + 2 * MIB, 1, 0) == 1);
    OK(cu.cuPointerGetAttribute(&id, 7, base));
    OK(cu.cuPointerGetAttribute(&id2, 7, base + bytes - 1));
    MUST(id && (id == id2 || home));
    MUST(cu.cuIpcGetMemHandle(handle, base) == 801);
    MUST(fake_cuda_count("cuIpcGetMemHandle") == 0);
}

static void home(void)
{
    enum { BYTES = 5 << 20 };
    cu_ptr ptr = alloc(BYTES), freed;

    check_block(ptr, BYTES, ptr);
    check_block(ptr, BYTES, ptr + BYTES / 2 + 3);
    check_block(ptr, BYTES, ptr + BYTES - 1);
    check_shareable(ptr, BYTES, true);
    OK(cu.cuMemFree_v2(ptr));
    freed = ptr;
    ptr = alloc(BYTES);
    OK(cu.cuMemFree_v2(ptr));
    MUST(cu.cuMemFree_v2(freed) == 1); /* twice: the driver does not know it either */
}

/* Every other block is given back, so that only scattered frames are left for a large one. */
static void stitched(void)
{
    enum { N = 48, BYTES = 4 << 20, LARGE = 60 << 20 };
    cu_ptr small[N], large = 0;
    unsigned char *host = malloc(LARGE), *back = malloc(LARGE);
    void *stream = NULL;
    size_t count = 0;

    MUST(host && back);
    /* All of the device, which has little. */
    while (count < N && !cu.cuMemAlloc_v2(&small[count], BYTES))
        count++;
    MUST(count >= 34);
    for (size_t i = 0; i < count; i += 2)
        OK(cu.cuMemFree_v2(small[i]));
    /* In stream order: as with CUDA's pools, a copy may be enqueued at once, and CUDA looks the
     * addresses up when that is called. This device's memory is the process's. */
    OK(cu.cuStreamCreate(&stream, 1));
    for (size_t bytes = 20 << 20; bytes < LARGE; bytes += 8 << 20) {
        OK(cu.cuMemAllocAsync(&large, bytes, stream));
        memset((void *)(uintptr_t)large, 0x11, bytes);
        OK(cu.cuMemFreeAsync(large, stream));
    }
    OK(cu.cuStreamDestroy_v2(stream));
    OK(cu.cuMemAlloc_v2(&large, LARGE));
    memset((void *)(uintptr_t)large, 0x22, LARGE);
    check_block(large, LARGE, large + LARGE / 3);
    check_shareable(large, LARGE, false);
    for (size_t k = 0; k < LARGE; k++)
        host[k] = (unsigned char)(k >> 12 ^ k);
    OK(cu.cuMemcpyHtoD_v2(large, host, LARGE));
    for (size_t i = 1; i < count; i += 2)
        OK(cu.cuMemsetD8_v2(small[i], 0xee, BYTES));
    OK(cu.cuMemcpyDtoH_v2(back, large, LARGE));
    MUST(!memcmp(host, back, LARGE));
    OK(cu.cuMemFree_v2(large));
    for (size_t i = 1; i < count; i += 2)
        OK(cu.cuMemFree_v2(small[i]));
    MUST(cu.cuMemAlloc_v2(&large, (size_t)16 << 30) == 2);
    free(host);
    free(back);
}

/* The driver's memory stays the driver's. */
static void foreign(void)
{
    struct {
        int type, handle_types;
        struct location location;
        void *win32;
        uint64_t flags;
    } props = {1, 0, {1, 0}, NULL, 0};
    cu_ptr managed = 0, va = 0, start = 0;
    void *pinned = NULL, *handle = NULL, *again = NULL;
    size_t size = 0;
    unsigned type = 0;

    (void)alloc(MIB); /* MoonBright is open */
    OK(cu.cuMemAllocManaged(&managed, MIB, 1));
    OK(cu.cuMemGetAddressRange_v2(&start, &size, managed + 5));
    MUST(start == managed && size == MIB);
    OK(cu.cuMemFree_v2(managed));
    OK(cu.cuMemHostAlloc(&pinned, MIB, 0));
    OK(cu.cuPointerGetAttribute(&type, 2, (uintptr_t)pinned));
    MUST(type == 1);
    OK(cu.cuMemFreeHost(pinned));
    OK(cu.cuMemAddressReserve(&va, 4 * MIB, 2 * MIB, 0, 0));
    OK(cu.cuMemCreate(&handle, 4 * MIB, &props, 0));
    OK(cu.cuMemMap(va, 4 * MIB, 0, handle, 0));
    OK(cu.cuMemSetAccess(va, 4 * MIB, &(struct access){{1, 0}, 3}, 1));
    OK(cu.cuMemsetD8_v2(va, 1, 4 * MIB));
    OK(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va));
    MUST(again == handle);
    OK(cu.cuMemUnmap(va, 4 * MIB));
    OK(cu.cuMemAddressFree(va, 4 * MIB));
    MUST(cu.cuMemGetAddressRange_v2(&start, &size, (uintptr_t)&start) == 500);
    MUST(cu.cuPointerGetAttribute(&type, 2, (uintptr_t)&start) == 1);
}

static void info(void)
{
    size_t before = 0, during = 0, after = 0, total = 0, total2 = 0;
    cu_ptr ptr = alloc(MIB);

    OK(cu.cuMemFree_v2(ptr));
    OK(cu.cuMemGetInfo_v2(&before, &total));
    ptr = alloc(64 * MIB);
    OK(cu.cuMemGetInfo_v2(&during, &total2));
    OK(cu.cuMemFree_v2(ptr));
    OK(cu.cuMemGetInfo_v2(&after, &total2));
    MUST(total == total2 && before <= total);
    printf("free %zu, with 64 MiB taken %zu\n", before, during);
    /* What the warm path keeps counts as taken until somebody needs it. */
    MUST(before - during >= 60 * MIB && before - during < 68 * MIB);
    printf("free again %zu\n", after);
    MUST(after >= during);
}

/* ------------------------------------------------------------ pools */

static uint64_t number_of(void *pool, int attribute)
{
    uint64_t value = 0;

    OK(cu.cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void pools(void)
{
    struct pool_props props = {.alloc_type = 1, .location = {1, 0}, .max_bytes = 32 * MIB};
    struct pool_props shared = {.alloc_type = 1, .handle_types = 1, .location = {1, 0}};
    void *pool = NULL, *standard = NULL, *now = NULL, *exported = NULL;
    cu_ptr a = 0, b = 0, c = 0;
    uint64_t word = 16 * MIB;
    int flag = 0, file = 0;

    OK(cu.cuDeviceGetDefaultMemPool(&standard, 0));
    OK(cu.cuDeviceGetMemPool(&now, 0));
    MUST(now == standard);
    OK(cu.cuMemPoolSetAttribute(standard, 4, &word));
    MUST(number_of(standard, 4) == 16 * MIB);
    OK(cu.cuMemPoolCreate(&pool, &props));
    MUST(pool != standard && fake_cuda_count("cuMemPoolCreate") == 0);
    OK(cu.cuMemPoolSetAttribute(pool, 2, &flag));
    flag = 5;
    OK(cu.cuMemPoolGetAttribute(pool, 2, &flag));
    MUST(flag == 0);
    MUST(cu.cuMemPoolSetAttribute(pool, 99, &flag) == 1);
    OK(cu.cuMemAllocFromPoolAsync(&a, 8 * MIB, pool, NULL));
    MUST(number_of(pool, 7) >= 8 * MIB && number_of(pool, 5) >= number_of(pool, 7));
    MUST(cu.cuMemAllocFromPoolAsync(&b, 32 * MIB, pool, NULL) == 2); /* its limit */
    OK(cu.cuDeviceSetMemPool(0, pool));
    OK(cu.cuMemAllocAsync(&b, 4 * MIB, NULL));
    MUST(number_of(pool, 7) >= 12 * MIB);
    OK(cu.cuMemFreeAsync(b, NULL));
    OK(cu.cuMemPoolTrimTo(pool, 0));
    OK(cu.cuMemPoolDestroy(pool)); /* while a lives */
    MUST(cu.cuMemPoolTrimTo(pool, 0) == 1);
    OK(cu.cuDeviceGetMemPool(&now, 0));
    MUST(now == standard);
    OK(cu.cuMemFreeAsync(a, NULL));
    MUST(cu.cuMemPoolDestroy(standard) == 1);
    MUST(cu.cuMemPoolExportToShareableHandle(&file, standard, 1, 0) == 1);
    /* A pool for other processes is the driver's, and so is its memory. */
    OK(cu.cuMemPoolCreate(&exported, &shared));
    OK(cu.cuMemPoolExportToShareableHandle(&file, exported, 1, 0));
    MUST(file == 7 && fake_cuda_count("cuMemPoolCreate") == 1);
    OK(cu.cuMemAllocFromPoolAsync(&c, MIB, exported, NULL));
    MUST(fake_cuda_count("cuMemAllocFromPoolAsync") == 1);
    OK(cu.cuMemFreeAsync(c, NULL));
    OK(cu.cuDeviceSetMemPool(0, exported));
    OK(cu.cuMemAllocAsync(&c, MIB, NULL));
    MUST(fake_cuda_count("cuMemAllocAsync") == 1);
    OK(cu.cuMemFreeAsync(c, NULL));
    OK(cu.cuMemPoolDestroy(exported)); /* while it is the current one */
    OK(cu.cuDeviceGetMemPool(&now, 0));
    MUST(now == standard);
    OK(cu.cuMemAllocAsync(&c, MIB, NULL));
    MUST(fake_cuda_count("cuMemAllocAsync") == 1);
    OK(cu.cuMemFreeAsync(c, NULL));
}

/* ------------------------------------------------------------ contexts, processes */

/* Memory of another context than the primary one is the driver's, and so is memory without one. */
static void contexts(void)
{
    cu_ptr ptr = alloc(MIB), other = 0, none = 0;
    uint64_t before = fake_cuda_count("cuMemAlloc_v2");
    void *ctx = NULL;

    OK(cu.cuCtxCreate_v2(&ctx, 0, 0));
    OK(cu.cuMemAlloc_v2(&other, MIB));
    MUST(fake_cuda_count("cuMemAlloc_v2") == before + 1);
    OK(cu.cuMemFree_v2(other));
    OK(cu.cuCtxPopCurrent_v2(&ctx));
    OK(cu.cuMemFree_v2(ptr));
    (void)alloc(MIB);
    OK(cu.cuCtxSetCurrent(NULL));
    MUST(cu.cuMemAlloc_v2(&none, MIB) == 201);
}

static void reset(void)
{
    cu_ptr ptr = alloc(MIB), start, side = 0;
    size_t bytes;

    for (unsigned i = 0; i < 2; i++) {
        OK(cu.cuMemAllocAsync_ptsz(&side, MIB, NULL)); /* the thread's helper stream goes, too */
        OK(i ? cu.cuDevicePrimaryCtxReset(0) : cu.cuDevicePrimaryCtxReset_v2(0));
        MUST(cu.cuMemGetAddressRange_v2(&start, &bytes, ptr) == 500);
        MUST(fake_cuda_held_bytes() == 0);
        ptr = alloc(3 * MIB);
        OK(cu.cuMemsetD8_v2(ptr, 1, 3 * MIB));
        OK(cu.cuMemAllocAsync_ptsz(&side, MIB, NULL));
        OK(cu.cuMemFreeAsync_ptsz(side, NULL));
    }
    MUST(fake_cuda_count("cuMemAllocAsync_ptsz") == 0);
    OK(cu.cuMemFree_v2(ptr));
}

/* Pools that the program made go with the context, the default one stays. */
static void pools_reset(void)
{
    struct pool_props props = {.alloc_type = 1, .location = {1, 0}};
    void *pool = NULL, *standard = NULL;
    uint64_t word = 0;
    cu_ptr ptr = 0;

    OK(cu.cuMemPoolCreate(&pool, &props));
    OK(cu.cuDeviceSetMemPool(0, pool));
    OK(cu.cuMemAllocAsync(&ptr, MIB, NULL));
    OK(cu.cuDevicePrimaryCtxReset_v2(0));
    MUST(cu.cuMemAllocFromPoolAsync(&ptr, MIB, pool, NULL) == 1);
    MUST(cu.cuMemPoolGetAttribute(pool, 4, &word) == 1);
    OK(cu.cuDeviceGetMemPool(&standard, 0));
    OK(cu.cuMemPoolGetAttribute(standard, 4, &word));
    OK(cu.cuMemAllocFromPoolAsync(&ptr, MIB, standard, NULL));
    OK(cu.cuMemFreeAsync(ptr, NULL));
    OK(cu.cuMemPoolDestroy(pool));
    MUST(fake_cuda_count("cuMemAllocFromPoolAsync") == 0 &&
         fake_cuda_count("cuMemAllocAsync") == 0);
}

/* One pool in the hands of several threads. */
static struct {
    void *pool;
    pthread_barrier_t start, end;
    unsigned destroyed; /* atomic */
} shared_pool;

enum { POOL_THREADS = 3, POOL_ROUNDS = 300 };

static void *pool_user(void *user)
{
    uint64_t word;

    (void)user;
    OK(cu.cuCtxSetCurrent(primary));
    for (unsigned round = 0; round < POOL_ROUNDS; round++) {
        int result;

        pthread_barrier_wait(&shared_pool.start);
        result = cu.cuMemPoolTrimTo(shared_pool.pool, 0);
        MUST(result == 0 || result == 1);
        result = cu.cuDeviceSetMemPool(0, shared_pool.pool);
        MUST(result == 0 || result == 1);
        result = cu.cuMemPoolDestroy(shared_pool.pool);
        MUST(result == 0 || result == 1);
        if (!result)
            __atomic_fetch_add(&shared_pool.destroyed, 1, __ATOMIC_RELAXED);
        MUST(cu.cuMemPoolGetAttribute(shared_pool.pool, 4, &word) == 1);
        pthread_barrier_wait(&shared_pool.end);
    }
    return NULL;
}

/* Of those that destroy it one does, the others are told, and no device keeps it. */
static void pools_shared(void)
{
    struct pool_props props = {.alloc_type = 1, .location = {1, 0}};
    pthread_t threads[POOL_THREADS];
    void *standard = NULL, *now = NULL;
    cu_ptr ptr = 0;

    OK(pthread_barrier_init(&shared_pool.start, NULL, POOL_THREADS + 1));
    OK(pthread_barrier_init(&shared_pool.end, NULL, POOL_THREADS + 1));
    OK(cu.cuDeviceGetDefaultMemPool(&standard, 0));
    for (unsigned i = 0; i < POOL_THREADS; i++)
        OK(pthread_create(&threads[i], NULL, pool_user, NULL));
    for (unsigned round = 0; round < POOL_ROUNDS; round++) {
        OK(cu.cuMemPoolCreate(&shared_pool.pool, &props));
        OK(cu.cuMemAllocFromPoolAsync(&ptr, MIB, shared_pool.pool, NULL));
        OK(cu.cuMemFreeAsync(ptr, NULL));
        pthread_barrier_wait(&shared_pool.start);
        pthread_barrier_wait(&shared_pool.end);
        MUST(shared_pool.destroyed == round + 1);
        OK(cu.cuDeviceGetMemPool(&now, 0));
        MUST(now == standard);
    }
    for (unsigned i = 0; i < POOL_THREADS; i++)
        OK(pthread_join(threads[i], NULL));
    pthread_barrier_destroy(&shared_pool.start);
    pthread_barrier_destroy(&shared_pool.end);
    MUST(fake_cuda_count("cuMemPoolDestroy") == 0 && fake_cuda_count("cuMemPoolTrimTo") == 0 &&
         fake_cuda_count("cuDeviceSetMemPool") == 0);
}

/* In the child the driver answers; here nothing changes. */
static void forks(void)
{
    cu_ptr ptr = alloc(MIB), start = 0;
    size_t bytes = 0;
    int status = -1;
    pid_t child = fork();

    MUST(child >= 0);
    if (!child) {
        uint64_t before = fake_cuda_count("cuMemAlloc_v2");
        cu_ptr mine = 0;

        OK(cu.cuMemAlloc_v2(&mine, MIB));
        MUST(fake_cuda_count("cuMemAlloc_v2") == before + 1);
        MUST(cu.cuMemGetAddressRange_v2(&start, &bytes, ptr) || bytes != MIB);
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    check_block(ptr, MIB, ptr);
    OK(cu.cuMemFree_v2(ptr));
}

static void *first_alloc(void *user)
{
    OK(cu.cuCtxSetCurrent(primary));
    OK(cu.cuMemAlloc_v2(user, MIB));
    return NULL;
}

/* $LOCKED is the registry that $MOONBRIGHT names: the device opens as long as it is locked. A child
 * of that time has none of the locks that the opening thread holds. */
static void fork_opening(void)
{
    const char *path = getenv("LOCKED");
    int status = -1, locked;
    cu_ptr ptr = 0, mine = 0;
    pthread_t opener;
    pid_t child;

    MUST(path);
    locked = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    MUST(locked >= 0 && !flock(locked, LOCK_EX));
    OK(pthread_create(&opener, NULL, first_alloc, &ptr));
    while (!is_waited_for(locked))
        usleep(1000);
    child = fork();
    MUST(child >= 0);
    if (!child) {
        alarm(600);
        OK(cu.cuMemAlloc_v2(&mine, MIB));
        OK(cu.cuMemFree_v2(mine));
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(!flock(locked, LOCK_UN));
    OK(pthread_join(opener, NULL));
    MUST(!close(locked));
    OK(cu.cuMemFree_v2(ptr));
}

/* A context that a kernel's fault has ended: programs hear of it what the driver says. */
static void broken(void)
{
    cu_ptr ptr = alloc(MIB), bad = 77;

    fake_cuda_break(700);
    MUST(cu.cuMemAllocAsync(&bad, 64 * MIB, NULL) == 700 && bad == 77);
    MUST(cu.cuMemAllocAsync_ptsz(&bad, 64 * MIB, NULL) == 700 && bad == 77);
    MUST(cu.cuMemAlloc_v2(&bad, 64 * MIB) == 700 && bad == 77);
    MUST(cu.cuMemFree_v2(ptr) == 700);
}

static void peers(void)
{
    void *second = NULL;
    cu_ptr ptr;
    int can = 1;

    OK(cu.cuDevicePrimaryCtxRetain(&second, 1));
    OK(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    MUST(!can);
    ptr = alloc(MIB);
    OK(cu.cuCtxSetCurrent(second));
    MUST(cu.cuCtxEnablePeerAccess(primary, 0) == 217);
    /* Each device has its own; a free finds the right one whatever is current. */
    OK(cu.cuMemFree_v2(ptr));
    ptr = alloc(MIB);
    OK(cu.cuPointerGetAttribute(&can, 9, ptr));
    MUST(can == 1);
    OK(cu.cuCtxSetCurrent(primary));
    OK(cu.cuMemFree_v2(ptr));
}

/* ------------------------------------------------------------ switches */

static void vendor(void)
{
    cu_ptr ptr = 0, start = 0;
    size_t bytes = 0;

    OK(cu.cuMemAlloc_v2(&ptr, MIB));
    MUST(fake_cuda_count("cuMemAlloc_v2") == 1 && fake_cuda_count("cuMemAddressReserve") == 0);
    OK(cu.cuMemGetAddressRange_v2(&start, &bytes, ptr));
    MUST(start == ptr);
    OK(cu.cuMemFree_v2(ptr));
    OK(cu.cuMemAllocAsync(&ptr, MIB, NULL));
    OK(cu.cuMemFreeAsync(ptr, NULL));
    MUST(fake_cuda_count("cuMemFree_v2") == 1 && fake_cuda_count("cuMemFreeAsync") == 1);
}

static void off(void)
{
    int can = 0;

    vendor();
    OK(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    MUST(can == 1);
}

/* What can be shared is the driver's, the rest MoonBright's. */
static void ipc(void)
{
    cu_ptr ptr = 0, pooled = 0;
    char handle[64];
    int can = 0;

    OK(cu.cuMemAlloc_v2(&ptr, MIB));
    OK(cu.cuIpcGetMemHandle(handle, ptr));
    OK(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    MUST(can == 1 && fake_cuda_count("cuMemAlloc_v2") >= 1);
    OK(cu.cuMemAllocAsync(&pooled, MIB, NULL));
    MUST(fake_cuda_count("cuMemAllocAsync") == 0);
    MUST(cu.cuIpcGetMemHandle(handle, pooled) == 801);
    OK(cu.cuMemFree_v2(ptr));
    OK(cu.cuMemFreeAsync(pooled, NULL));
}

typedef int value_call(void *stream, cu_ptr address, uint64_t value, unsigned flags);

/* Two streams hand each other a value, and between the two halves one frees what the other could
 * use. CUDA's pool grows then; so must ours, or none of the two goes on. */
static void hand_shake(void)
{
    value_call *wait, *write;
    int (*sync)(void *stream);
    void *a = NULL, *b = NULL, *flag = NULL;
    cu_ptr first = 0, second = 0;

    *(void **)&wait = dlsym(RTLD_DEFAULT, "cuStreamWaitValue64_v2");
    *(void **)&write = dlsym(RTLD_DEFAULT, "cuStreamWriteValue64_v2");
    *(void **)&sync = dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
    MUST(wait && write && sync);
    OK(cu.cuStreamCreate(&a, 1));
    OK(cu.cuStreamCreate(&b, 1));
    OK(cu.cuMemHostAlloc(&flag, 8, 0));
    *(uint64_t *)flag = 0;
    OK(cu.cuMemAllocAsync(&first, 8 * MIB, a));
    OK(wait(a, (uintptr_t)flag, 1, 0));
    OK(cu.cuMemFreeAsync(first, a));
    OK(cu.cuMemAllocAsync(&second, 8 * MIB, b));
    MUST(second != first);
    OK(write(b, (uintptr_t)flag, 1, 0));
    OK(sync(a));
    OK(sync(b));
    OK(cu.cuMemFreeAsync(second, b));
    OK(cu.cuMemFreeHost(flag));
}

/* On the software GPU, whose addresses the driver does not know. */
static void sim(void)
{
    cu_ptr ptr = alloc(5 * MIB), again;

    check_block(ptr, 5 * MIB, ptr + MIB);
    OK(cu.cuMemFree_v2(ptr));
    OK(cu.cuMemAllocAsync(&again, 5 * MIB, NULL));
    check_block(again, 5 * MIB, again);
    OK(cu.cuMemFreeAsync(again, NULL));
    MUST(fake_cuda_count("cuMemFree_v2") == 0);
}

__attribute__((visibility("default"))) extern int program_marker;
int program_marker;

/* dlsym goes on as before: RTLD_NEXT is what comes after the caller, other names are found. */
static void names(void)
{
    void *next = dlsym(RTLD_NEXT, "malloc"), *first = dlsym(RTLD_DEFAULT, "malloc");
    void *self = dlopen(NULL, RTLD_NOW);

    MUST(next && first && self && dlsym(self, "program_marker") == &program_marker);
    MUST(!dlsym(self, "cuNothingOfThisName") && dlerror());
    MUST(dlsym(RTLD_DEFAULT, "program_marker") == &program_marker);
    MUST(!dlsym(RTLD_NEXT, "program_marker")); /* the program itself comes first */
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"blocks", blocks},
             {"pitch", pitch},
             {"async", async},
             {"capture", capture},
             {"home", home},
             {"stitched", stitched},
             {"info", info},
             {"foreign", foreign},
             {"pools", pools},
             {"reset", reset},
             {"forks", forks},
             {"fork_opening", fork_opening},
             {"broken", broken},
             {"peers", peers},
             {"contexts", contexts},
             {"off", off},
             {"ipc", ipc},
             {"sim", sim},
             {"names", names},
             {"pools_reset", pools_reset},
             {"pools_shared", pools_shared},
             {"many", many},
             {"vendor", vendor},
             {"hand_shake", hand_shake}};

int main(int argc, char **argv)
{
    bool ran = false;

    MUST(argc == 3);
    find_api(argv[1]);
    start();
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, argv[2]) != 0)
            continue;
        cases[i].run();
        ran = true;
    }
    MUST(ran);
    printf("%s %s: cuMemAlloc_v2 reached %llu times\n", argv[1], argv[2],
           (unsigned long long)fake_cuda_count("cuMemAlloc_v2"));
    return 0;
}
