/* SPDX-License-Identifier: MIT */
/*
 * What a process may do besides allocating: fork, exec, exit without closing, take signals, unload
 * the library. Each case runs in a child of its own; the parent never opens a device.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonbright.h"
#include "runtime/runtime.h"
#include "test.h"

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s does not hold: %s\n", __LINE__, #condition,               \
                    mb_error_detail());                                                            \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

static int wait_for(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void in_child(void (*run)(void))
{
    pid_t child;

    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        run();
        _exit(0);
    }
    CHECK_EQ(wait_for(child), 0);
}

static mb_device open_device(void)
{
    mb_device dev;

    MUST(!mb_open(0, "backend:sim,device_memory:128m", &dev));
    return dev;
}

static void use_and_check(mb_device dev, void *block, uint64_t seed)
{
    struct mb_stats stats;

    MUST(!mb_verify_async(dev, block, 4 << 20, seed, NULL));
    MUST(!mb_device_sync(dev));
    MUST(!mb_check(dev));
    MUST(!mb_stats_get(dev, &stats));
    MUST(stats.wrong_words == 0 && stats.wrong_accesses == 0);
}

/* ------------------------------------------------------------ fork */

/* Every call of the child says that it is one. */
static void all_forked(mb_device dev, void *block)
{
    struct mb_tables_report report;
    struct mb_stats stats;
    mb_device other = NULL;
    void *ptr = NULL;

    MUST(mb_malloc(dev, 100, &ptr) == MB_ERR_FORKED);
    MUST(mb_malloc_async(dev, 100, NULL, &ptr) == MB_ERR_FORKED);
    MUST(mb_free(dev, block) == MB_ERR_FORKED);
    MUST(mb_free_async(dev, block, NULL) == MB_ERR_FORKED);
    MUST(mb_device_sync(dev) == MB_ERR_FORKED);
    MUST(mb_check(dev) == MB_ERR_FORKED);
    MUST(mb_check_tables(dev, true, &report) == MB_ERR_FORKED);
    MUST(mb_stats_get(dev, &stats) == MB_ERR_FORKED);
    MUST(mb_open(0, "backend:sim", &other) == MB_ERR_FORKED);
    MUST(!ptr && !other);
    mb_close(dev); /* does nothing */
}

static void fork_with_an_open_device(void)
{
    mb_device dev = open_device();
    void *block;

    MUST(!mb_malloc(dev, 4 << 20, &block));
    MUST(!mb_fill_async(dev, block, 4 << 20, 5, NULL));
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();

        MUST(child >= 0);
        if (!child) {
            all_forked(dev, block);
            if (i & 1)
                _exit(7);
            exit(7); /* with exit handlers */
        }
        MUST(wait_for(child) == 7);
        use_and_check(dev, block, 5);
    }
    MUST(!mb_free(dev, block));
    mb_close(dev);
}

TEST(fork_leaves_the_parent_alone)
{
    in_child(fork_with_an_open_device);
}

struct busy {
    mb_device dev;
    bool stop; /* atomic */
    unsigned rounds;
};

static void *keep_busy(void *user)
{
    struct busy *b = user;
    uint64_t seed = (uint64_t)(uintptr_t)&seed;

    while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
        void *ptr;

        MUST(!mb_malloc_async(b->dev, mb_test_random_below(&seed, 8 << 20) + 1, NULL, &ptr));
        MUST(!mb_free_async(b->dev, ptr, NULL));
        __atomic_add_fetch(&b->rounds, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* A child of a process with other threads has none of them, so what only their stacks pointed to
 * looks lost to LeakSanitizer. It asks this function when the process exits. */
static int without_leak_check;
int __lsan_is_turned_off(void);
__attribute__((used, visibility("default"))) int __lsan_is_turned_off(void)
{
    return without_leak_check;
}

/* Other threads hold locks in the moment of the fork; the child has none of them and needs none. */
static void fork_beside_busy_threads(void)
{
    struct busy b = {.dev = open_device()};
    pthread_t thread[4];
    void *block;

    MUST(!mb_malloc(b.dev, 4 << 20, &block));
    MUST(!mb_fill_async(b.dev, block, 4 << 20, 6, NULL));
    for (int i = 0; i < 4; i++)
        MUST(!pthread_create(&thread[i], NULL, keep_busy, &b));
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();

        MUST(child >= 0);
        if (!child) {
            without_leak_check = 1;
            all_forked(b.dev, block);
            if (i % 4 == 0)
                execl("/bin/true", "true", (char *)NULL);
            if (i & 1)
                _exit(0);
            exit(0);
        }
        MUST(wait_for(child) == 0);
    }
    __atomic_store_n(&b.stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++)
        MUST(!pthread_join(thread[i], NULL));
    use_and_check(b.dev, block, 6);
    MUST(!mb_free(b.dev, block));
    mb_close(b.dev);
}

TEST(fork_beside_threads_that_allocate)
{
    in_child(fork_beside_busy_threads);
}

struct owner_search {
    mb_device asked;
    void *ptr;
};

static void *free_elsewhere(void *user)
{
    struct owner_search *s = user;

    MUST(mb_free(s->asked, s->ptr) == MB_ERR_NOT_FOUND);
    return NULL;
}

/* A thread goes through the list of devices, whose lock it has, and waits for one of them. The
 * child must not wait for that list when its exit handlers run. */
static void fork_beside_a_search(void)
{
    mb_device dev = open_device();
    struct owner_search search;
    pthread_t thread;
    pid_t child;

    MUST(!mb_open(1, "backend:sim,device_memory:64m", &search.asked));
    MUST(!mb_malloc(dev, 4 << 20, &search.ptr));
    mb__lock(&dev->lock);
    MUST(!pthread_create(&thread, NULL, free_elsewhere, &search));
    usleep(20000); /* if the thread comes later, it is only the easier case */
    child = fork();
    MUST(child >= 0);
    if (!child) {
        without_leak_check = 1;
        (void)alarm(600);
        exit(0);
    }
    MUST(wait_for(child) == 0);
    mb__unlock(&dev->lock);
    MUST(!pthread_join(thread, NULL));
    MUST(!mb_free(dev, search.ptr));
    mb_close(search.asked);
    mb_close(dev);
}

TEST(fork_beside_a_thread_that_looks_for_an_owner)
{
    in_child(fork_beside_a_search);
}

/* ------------------------------------------------------------ exec */

/* Nothing that MoonBright opened survives an exec. */
static void exec_with_an_open_device(void)
{
    char config[128], path[] = P_tmpdir "/mb-process-XXXXXX", before[64] = {0};
    mb_device dev;
    int fd = mkstemp(path);

    MUST(fd >= 0);
    close(fd);
    for (int i = 0; i < 64; i++)
        before[i] = fcntl(i, F_GETFD) >= 0;
    snprintf(config, sizeof(config), "backend:sim,device_memory:128m,audit:%s", path);
    MUST(!mb_open(0, config, &dev));
    for (int i = 0; i < 64; i++) {
        int flags = fcntl(i, F_GETFD);

        MUST(before[i] || flags < 0 || flags & FD_CLOEXEC);
    }
    unlink(path);
    execl("/bin/true", "true", (char *)NULL);
    _exit(98);
}

TEST(exec_closes_everything)
{
    in_child(exec_with_an_open_device);
}

/* ------------------------------------------------------------ exit */

static void exit_without_close(void)
{
    mb_device dev = open_device();
    void *block;

    MUST(!mb_malloc(dev, 4 << 20, &block));
    MUST(!mb_fill_async(dev, block, 4 << 20, 5, NULL));
    _exit(0);
}

static mb_device late_device;

static void use_in_exit_handler(void)
{
    void *block;

    MUST(!mb_malloc(late_device, 4 << 20, &block));
    MUST(!mb_fill_async(late_device, block, 4 << 20, 5, NULL));
    use_and_check(late_device, block, 5);
    MUST(!mb_free(late_device, block));
    mb_close(late_device);
}

static void exit_with_handler(void)
{
    late_device = open_device();
    MUST(!atexit(use_in_exit_handler));
    exit(0);
}

static mb_device late_other;
static mb_pool late_pool;
static mb_event late_event;

/* Behind the library's own destructors, as those of other libraries may be, and as threads are that
 * nobody stops. */
__attribute__((destructor(101))) static void use_in_destructor(void)
{
    void *block;

    if (!late_pool)
        return;
    MUST(!mb_malloc(late_other, 100, &block) && !mb_free(late_other, block));
    MUST(!mb_pool_malloc_async(late_pool, 100, NULL, &block));
    MUST(!mb_free_async(late_other, block, NULL));
    MUST(!mb_event_record(late_other, late_event, NULL));
    mb_close(late_other);
    mb_close(late_device);
}

static void exit_with_destructor(void)
{
    late_device = open_device();
    late_other = open_device();
    MUST(!mb_event_create(late_other, &late_event));
    MUST(!mb_pool_create(late_other, &late_pool));
    exit(0);
}

TEST(devices_left_open_serve_to_the_very_end)
{
    in_child(exit_with_destructor);
}

TEST(exit_without_close_and_from_a_handler)
{
    in_child(exit_without_close);
    in_child(exit_with_handler);
}

/* ------------------------------------------------------------ signals */

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

/* Interrupted all the time, audit log included. */
static void work_under_signals(void)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART: calls are interrupted */
    struct itimerval timer = {{0, 100}, {0, 100}};
    char config[128], path[] = P_tmpdir "/mb-process-XXXXXX";
    struct mb_audit_summary sum;
    uint64_t state = 1;
    mb_device dev;
    int fd = mkstemp(path);

    MUST(fd >= 0);
    close(fd);
    snprintf(config, sizeof(config), "backend:sim,device_memory:128m,audit:%s", path);
    MUST(!sigaction(SIGALRM, &action, NULL));
    MUST(!setitimer(ITIMER_REAL, &timer, NULL));
    MUST(!mb_open(0, config, &dev));
    for (unsigned i = 0; i < 400 || alarms < 20; i++) {
        void *a, *b;

        MUST(!mb_malloc_async(dev, mb_test_random_below(&state, 20 << 20) + (4 << 20), NULL, &a));
        MUST(!mb_malloc_async(dev, mb_test_random_below(&state, 20 << 20) + 1, NULL, &b));
        MUST(!mb_fill_async(dev, a, 4 << 20, i, NULL));
        use_and_check(dev, a, i);
        MUST(!mb_free_async(dev, a, NULL));
        MUST(!mb_free(dev, b));
    }
    timer = (struct itimerval){{0, 0}, {0, 0}};
    MUST(!setitimer(ITIMER_REAL, &timer, NULL));
    mb_close(dev);
    MUST(!mb_audit_read(path, NULL, NULL, &sum));
    MUST(sum.closed && !sum.tail_bytes);
    unlink(path);
}

TEST(signals)
{
    in_child(work_under_signals);
}

/* A sanitizer ends the process in its own way where the program itself is at fault. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FAULTS_ARE_CAUGHT
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAULTS_ARE_CAUGHT
#endif

static char log_path[64];

/* Ends by a signal in the middle of its work: as an assertion, a fault, or the terminal's end
 * would. */
static void work_until(int number)
{
    char config[160];
    mb_device dev;

    snprintf(config, sizeof(config), "backend:sim,device_memory:128m,audit:%s", log_path);
    MUST(!mb_open(0, config, &dev));
    for (unsigned i = 0;; i++) {
        void *ptr;

        MUST(!mb_malloc_async(dev, (i % 30 + 1) << 20, NULL, &ptr));
        if (i == 50)
            raise(number);
        MUST(!mb_free_async(dev, ptr, NULL));
    }
}

/* Whatever ends the process, the log is whole, and the next process opens and goes on in it. */
TEST(deadly_signals_leave_a_whole_log)
{
    static const int numbers[] = {SIGTERM, SIGHUP, SIGINT, SIGABRT,
#ifndef FAULTS_ARE_CAUGHT
                                  SIGSEGV, SIGBUS,
#endif
                                  SIGKILL};

    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct mb_audit_summary sum;
        int fd, rc;
        pid_t child;

        snprintf(log_path, sizeof(log_path), "%s/mb-process-XXXXXX", P_tmpdir);
        fd = mkstemp(log_path);
        CHECK(fd >= 0);
        close(fd);
        for (unsigned round = 1; round <= 2; round++) {
            fflush(stdout);
            child = fork();
            CHECK(child >= 0);
            if (!child) {
                struct rlimit none = {0, 0};

                (void)setrlimit(RLIMIT_CORE, &none);
                for (unsigned k = 0; k < sizeof(numbers) / sizeof(numbers[0]) - 1; k++)
                    (void)signal(numbers[k], SIG_DFL);
                work_until(numbers[i]);
            }
            rc = wait_for(child);
            CHECK_EQ(rc, 1000 + numbers[i]);
            CHECK_OK(mb_audit_read(log_path, NULL, NULL, &sum));
            CHECK_EQ(sum.sessions, round);
            CHECK_EQ(sum.tail_bytes, 0);
            CHECK(!sum.closed);
        }
        unlink(log_path);
    }
    printf("COUNT processes ended by a signal %d\n",
           2 * (int)(sizeof(numbers) / sizeof(numbers[0])));
}

/* ------------------------------------------------------------ dlclose */

static void load_and_unload(void)
{
    const char *build = getenv("MB_BUILD_DIR");
    char path[4096];

    MUST(build);
    snprintf(path, sizeof(path), "%s/lib/libmoonbright.so", build);
    for (int i = 0; i < 30; i++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        enum mb_err (*open_it)(int, const char *, mb_device *);
        enum mb_err (*malloc_it)(mb_device, size_t, void **);
        void (*close_it)(mb_device);
        void *block = NULL;
        mb_device dev;
        pid_t child;

        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            _exit(97);
        }
        *(void **)&open_it = dlsym(library, "mb_open");
        *(void **)&malloc_it = dlsym(library, "mb_malloc");
        *(void **)&close_it = dlsym(library, "mb_close");
        MUST(open_it && malloc_it && close_it);
        MUST(!open_it(0, "backend:sim,device_memory:128m", &dev));
        MUST(!malloc_it(dev, 5 << 20, &block));
        close_it(dev);
        MUST(!dlclose(library));
        /* A handler that had stayed behind would run here. */
        child = fork();
        MUST(child >= 0);
        if (!child)
            _exit(0);
        MUST(wait_for(child) == 0);
    }
    exit(0);
}

/* With devices open the library stays until they are closed: they work on through pointers that
 * were taken before, in the process's exit handlers too. */
static bool leave_open; /* one device, when the process exits */

static void unload_with_an_open_device(void)
{
    char path[4096];
    void *library[2], *block[2] = {NULL};
    enum mb_err (*open_it)(int, const char *, mb_device *);
    enum mb_err (*malloc_it)(mb_device, size_t, void **);
    enum mb_err (*fill_it)(mb_device, void *, size_t, uint64_t, mb_stream);
    enum mb_err (*sync_it)(mb_device);
    void (*close_it)(mb_device);
    mb_device dev[2];
    pid_t child;

    snprintf(path, sizeof(path), "%s/lib/libmoonbright.so", getenv("MB_BUILD_DIR"));
    library[0] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    MUST(library[0]);
    *(void **)&open_it = dlsym(library[0], "mb_open");
    *(void **)&malloc_it = dlsym(library[0], "mb_malloc");
    *(void **)&fill_it = dlsym(library[0], "mb_fill_async");
    *(void **)&sync_it = dlsym(library[0], "mb_device_sync");
    *(void **)&close_it = dlsym(library[0], "mb_close");
    MUST(open_it && malloc_it && fill_it && sync_it && close_it);
    for (int i = 0; i < 2; i++)
        MUST(!open_it(0, "backend:sim,device_memory:128m", &dev[i]));
    for (int round = 0; round < 3; round++) {
        if (!round)
            MUST(!dlclose(library[0]));
        for (int i = 0; i < 2; i++) {
            MUST(!malloc_it(dev[i], 5 << 20, &block[i]));
            MUST(!fill_it(dev[i], block[i], 5 << 20, 3, NULL));
            MUST(!sync_it(dev[i]));
        }
        child = fork(); /* its handlers are in the library */
        MUST(child >= 0);
        if (!child)
            exit(malloc_it(dev[0], 100, &block[0]) == MB_ERR_FORKED ? 0 : 1);
        MUST(wait_for(child) == 0);
    }
    /* Who closes has the library again; after the last close it goes. */
    library[1] = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    MUST(library[1]);
    close_it(dev[0]);
    if (leave_open)
        exit(0);
    close_it(dev[1]);
    MUST(!dlclose(library[1]));
    MUST(!dlopen(path, RTLD_NOW | RTLD_NOLOAD));
    exit(0);
}

TEST(library_stays_with_an_open_device)
{
    char path[4096];

    if (!getenv("MB_BUILD_DIR"))
        SKIP("MB_BUILD_DIR is not set: run by ctest");
    snprintf(path, sizeof(path), "%s/lib/libmoonbright.so", getenv("MB_BUILD_DIR"));
    if (access(path, R_OK))
        SKIP("the shared library is not built");
    in_child(unload_with_an_open_device);
    leave_open = true;
    in_child(unload_with_an_open_device);
}

TEST(library_is_unloaded)
{
    char path[4096];

    if (!getenv("MB_BUILD_DIR"))
        SKIP("MB_BUILD_DIR is not set: run by ctest");
    snprintf(path, sizeof(path), "%s/lib/libmoonbright.so", getenv("MB_BUILD_DIR"));
    if (access(path, R_OK))
        SKIP("the shared library is not built");
    in_child(load_and_unload);
}
