/* SPDX-License-Identifier: MIT */
/* lifetime.c - resets, forks, exits, kills, dead helpers, refusals. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "gpu.h"

static void map_some(struct gt *t, struct mb_hw_stream *s, uint32_t count)
{
    struct gt_words homes = gt_words(t, count), out = gt_words(t, count);

    for (uint32_t i = 0; i < count; i++)
        homes.host[i] = t->home[i];
    gt_map(t, s, 0, count, t->pfn, t->tmpl_rw, true);
    gt_touch(t, s, t->view.va.addr, GT_FRAME, count, 0x1234000);
    gt_peek(t, s, homes, count, out);
    gt_sync(t, s);
    for (uint32_t i = 0; i < count; i++)
        GT_CHECK(out.host[i] == 0x1234000 + i);
}

static void setup(struct gt *t, struct mb_hw_stream **s)
{
    gt_open(t, gt_arg("tables", "inline"));
    gt_pool(t, 64ull << 20, 4);
    gt_window(t, 1);
    *s = gt_stream(t);
    map_some(t, *s, 64);
}

/* The context is reset while windows are mapped; the device says so, and a new one works. */
int gt_test_reset(void)
{
    cu_result (*reset)(cu_device);
    struct mb_hw_stream *s;
    struct gt t;

    for (unsigned round = 0; round < 3; round++) {
        setup(&t, &s);
        *(void **)&reset = gt_symbol(&t, "cuDevicePrimaryCtxReset_v2");
        if (round == 2) { /* in order: windows mapped, then close */
            t.hw->ops->close(t.hw);
            break;
        }
        GT_CU(reset(t.dev->device));
        enum mb_err err = t.hw->ops->health(t.hw);
        printf("after the reset: %s: %s\n", mb_error_name(err), mb_error_detail());
        GT_CHECK(err == MB_ERR_DEVICE_LOST);
        struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};
        GT_CHECK(mb__cuda_submit_fence(t.hw, s, &cmd, 1, NULL) == MB_ERR_DEVICE_LOST);
        t.hw->ops->close(t.hw);
    }
    printf("RESULT reset tables %s rounds 3\n", gt_arg("tables", "inline"));
    return 0;
}

static _Noreturn void child_of_fork(struct gt *t, struct mb_hw_stream *s)
{
    struct mb_hw_fence f;
    struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};
    mb_va va;
    int bad = 0;

    bad |= mb__cuda_submit_fence(t->hw, s, &cmd, 1, &f) != MB_ERR_FORKED;
    bad |= t->hw->ops->va_reserve(t->hw, GT_FRAME, GT_FRAME, &va) != MB_ERR_FORKED;
    bad |= t->hw->ops->fence_record(t->hw, s, &f) != MB_ERR_FORKED;
    usleep(20000);
    t->hw->ops->close(t->hw);
    exit(bad ? 3 : 0); /* exit handlers run */
}

int gt_test_fork(void)
{
    unsigned workers = (unsigned)gt_arg_u64("workers", 8);
    struct mb_hw_stream *s;
    struct gt t;
    int status, bad = 0;

    setup(&t, &s);
    for (unsigned i = 0; i < workers; i++) {
        pid_t pid = fork();

        if (!pid)
            child_of_fork(&t, s);
        GT_CHECK(pid > 0);
        map_some(&t, s, 64);
    }
    for (unsigned left = workers; left;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid > 0) {
            left--;
            bad |= !WIFEXITED(status) || WEXITSTATUS(status);
        }
        map_some(&t, s, 96);
        gt_unmap(&t, s, 0, 96);
    }
    map_some(&t, s, 128);
    printf("RESULT fork tables %s workers %u bad %d\n", t.hw->caps.tables, workers, bad);
    gt_close(&t);
    return bad;
}

/* The helper dies on purpose: whoever waits for it must end with a named error, and never go on. */
int gt_test_broken(void)
{
    struct gt_words homes, out;
    struct mb_hw_stream *s;
    struct gt t;
    cu_result result;
    enum mb_err err = MB_OK;
    double t0;

    setup(&t, &s);
    homes = gt_words(&t, 1);
    out = gt_words(&t, 1);
    homes.host[0] = t.home[70];
    gt_touch(&t, s, t.home[70], GT_FRAME, 1, 0x42);
    gt_peek(&t, s, homes, 1, out);
    gt_sync(&t, s);
    if (t.dev->tables == MB_CUDA_ISOLATED)
        GT_OK(mb__cuda_queue_poison(t.dev, s));
    else
        mb__cuda_refill_break(t.dev);
    /* A map, and behind it a write that must not happen. */
    struct mb_hw_cmd cmd[4] = {
        {.kind = MB_HW_LEAVES,
         .leaves =
             {.view = &t.view, .first = 70, .count = 1, .pfns = &t.pfn[70], .tmpl = t.tmpl_rw}},
        {.kind = MB_HW_BARRIER},
        {.kind = MB_HW_INVALIDATE},
        {.kind = MB_HW_MEMBAR},
    };
    t0 = gt_now_us();
    err = mb__cuda_submit_fence(t.hw, s, cmd, 4, NULL);
    if (!err) {
        struct gt_words a = gt_words(&t, 1);

        a.host[0] = gt_slot_va(&t, 70);
        gt_poke(&t, s, a, 1, a);
        result = t.cu->stream_sync(s->native);
        printf("stream ended with CUDA error %d after %.1f ms\n", result, (gt_now_us() - t0) / 1e3);
        GT_CHECK(result != 0);
    }
    usleep(100000);
    err = t.hw->ops->health(t.hw);
    printf("health: %s: %s\n", mb_error_name(err), mb_error_detail());
    GT_CHECK(err == MB_ERR_DEVICE_LOST);
    printf("RESULT broken tables %s\n", gt_arg("tables", "inline"));
    t.hw->ops->close(t.hw);
    return 0;
}

/* ------------------------------------------------------------ kills */

/* Works until it is killed, or faults on purpose after `fault` batches. Verifies what it does
 * first: so a victim that starts after a kill is also the proof that the kill left nothing behind.
 * */
int gt_test_victim(void)
{
    uint64_t fault = gt_arg_u64("fault", 0);
    struct mb_hw_stream *s;
    struct mb_rng rng;
    struct gt t;

    mb__rng_seed(&rng, gt_arg_u64("seed", 1));
    setup(&t, &s);
    printf("victim ready\n");
    fflush(stdout);
    for (uint64_t i = 1;; i++) {
        uint32_t at = (uint32_t)mb__rng_below(&rng, 128), n = 1 + (uint32_t)mb__rng_below(&rng, 64);

        gt_map(&t, s, at, n, t.pfn + mb__rng_below(&rng, t.frames - n), t.tmpl_rw, true);
        gt_touch(&t, s, gt_slot_va(&t, at), GT_FRAME, n, i);
        if (i == fault) {
            gt_touch(&t, s, 0x10000, 8, 1, 1); /* an address nobody mapped */
            (void)t.cu->stream_sync(s->native);
            usleep(50000);
            printf("victim health %s\n", mb_error_name(t.hw->ops->health(t.hw)));
            return 0; /* exit handlers */
        }
        if (i % 16 == 0 && t.cu->stream_sync(s->native))
            GT_FAIL("the victim's stream failed by itself");
    }
}

static pid_t start_victim(const char *tables, uint64_t seed, uint64_t fault, int *out)
{
    char seed_arg[48], fault_arg[48], tables_arg[48];
    int fds[2];
    pid_t pid;

    GT_CHECK(!pipe(fds));
    snprintf(seed_arg, sizeof(seed_arg), "seed=%" PRIu64, seed);
    snprintf(fault_arg, sizeof(fault_arg), "fault=%" PRIu64, fault);
    snprintf(tables_arg, sizeof(tables_arg), "tables=%s", tables);
    pid = fork();
    if (!pid) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execl("/proc/self/exe", "gputest", "victim", seed_arg, fault_arg, tables_arg, (char *)NULL);
        _exit(9);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

/* Reads until the victim says that it is ready; false if it ends before. */
static bool wait_ready(int fd, char *text, size_t bytes)
{
    size_t n = 0;

    text[0] = '\0';
    while (n + 1 < bytes && !strstr(text, "victim ready")) {
        ssize_t r = read(fd, text + n, bytes - 1 - n);

        if (r <= 0)
            return false;
        n += (size_t)r;
        text[n] = '\0';
    }
    return true;
}

/* Victims one after the other, each killed at a random moment in one of three ways. */
int gt_test_kill(void)
{
    uint64_t kills = gt_arg_u64("kills", 50), seed = gt_arg_u64("seed", (uint64_t)gt_now_us());
    uint64_t count[3] = {0, 0, 0};
    struct mb_rng rng;

    printf("seed %" PRIu64 "\n", seed);
    mb__rng_seed(&rng, seed);
    for (uint64_t k = 0; k < kills; k++) {
        static const char *const modes[] = {"inline", "isolated"};
        const char *tables = gt_arg("tables", modes[mb__rng_below(&rng, 2)]);
        unsigned way = (unsigned)mb__rng_below(&rng, 3);
        uint64_t fault = way == 2 ? 1 + mb__rng_below(&rng, 200) : 0;
        char text[4096];
        int status, fd;
        pid_t pid = start_victim(tables, mb__rng_next(&rng), fault, &fd);

        if (!wait_ready(fd, text, sizeof(text)))
            GT_FAIL("victim %" PRIu64 " (%s) did not start cleanly:\n%s", k, tables, text);
        if (way < 2) {
            usleep((useconds_t)mb__rng_below(&rng, 20000));
            kill(pid, way ? SIGKILL : SIGTERM);
        }
        GT_CHECK(waitpid(pid, &status, 0) == pid);
        close(fd);
        bool right = way == 2   ? WIFEXITED(status) && WEXITSTATUS(status) == 0
                     : way == 1 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                : WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
        if (!right)
            GT_FAIL("victim %" PRIu64 " (%s, way %u) ended with status 0x%x", k, tables, way,
                    status);
        count[way]++;
    }
    printf("RESULT kill SIGTERM %" PRIu64 " SIGKILL %" PRIu64 " fault %" PRIu64 "\n", count[0],
           count[1], count[2]);
    return 0;
}

/* Ends with everything mapped, in the way asked for: return, exit, abort inside, quick_exit. */
int gt_test_exit(void)
{
    const char *how = gt_arg("how", "return");
    struct mb_hw_stream *s;
    struct gt t;

    setup(&t, &s);
    printf("PASS: exit %s\n", how);
    fflush(stdout);
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "segv"))
        (void)raise(SIGSEGV);
    if (!strcmp(how, "unmap")) {
        /* Behind our back: the application unmaps a slab that a window shows. */
        GT_CU(t.cu->mem_unmap(t.slab[0].home.addr, 64ull << 20));
        enum mb_err err = t.hw->ops->health(t.hw);
        printf("after a foreign unmap: %s: %s\n", mb_error_name(err), mb_error_detail());
        GT_CHECK(err == MB_ERR_DEVICE_LOST);
        t.hw->ops->close(t.hw);
    }
    return 0;
}

/* ------------------------------------------------------------ refusals */

static void expect_refusal(const char *what, const char *word)
{
    struct mb_hw_config config = {.tables = "inline"};
    struct mb_hw_dev *hw = NULL;
    enum mb_err err = mb__cuda_open(&config, &hw);

    printf("%s: inline %s: %s\n", what, mb_error_name(err), err ? mb_error_detail() : "");
    GT_CHECK(err && strstr(mb_error_detail(), word));
    config.tables = NULL;
    GT_OK(mb__cuda_open(&config, &hw));
    printf("%s: default %s, reason: %s\n", what, hw->caps.tables, mb__cuda(hw)->tables_reason);
    GT_CHECK(!strcmp(hw->caps.tables, "driver") && strstr(mb__cuda(hw)->tables_reason, word));
    hw->ops->close(hw);
}

/* Another process with a context, for `seconds`. */
static pid_t hold_context(void)
{
    int fds[2];
    char c;
    pid_t pid;

    GT_CHECK(!pipe(fds));
    pid = fork();
    if (!pid) {
        dup2(fds[1], 1);
        execl("/proc/self/exe", "gputest", "refused", "what=hold", (char *)NULL);
        _exit(9);
    }
    close(fds[1]);
    GT_CHECK(read(fds[0], &c, 1) == 1);
    return pid;
}

int gt_test_refused(void)
{
    const char *what = gt_arg("what", "privilege");

    if (!strcmp(what, "hold")) {
        const struct mb_cuda_driver *cu;
        cu_context ctx;

        GT_OK(mb__cuda_driver_open(&cu));
        GT_CU(cu->init(0));
        GT_CU(cu->primary_retain(&ctx, 0));
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        printf("x\n");
        fflush(stdout);
        sleep(60);
        return 0;
    }
    if (!strcmp(what, "privilege")) {
        /* What a container without SYS_ADMIN has: the identity of root, but not the capability. */
        GT_CHECK(!prctl(PR_CAPBSET_DROP, 21));
        struct {
            uint32_t version;
            int pid;
        } header = {0x20080522, 0};
        uint32_t data[6];
        extern int capget(void *, void *), capset(void *, const void *);
        GT_CHECK(!capget(&header, data));
        data[0] &= ~(1u << 21);
        data[1] &= ~(1u << 21);
        GT_CHECK(!capset(&header, data));
        expect_refusal("no CAP_SYS_ADMIN", "SYS_ADMIN");
    } else if (!strcmp(what, "shared")) {
        pid_t pid = hold_context();
        struct mb_hw_config config = {.tables = "inline", .force = true};
        struct mb_hw_dev *hw;

        expect_refusal("another process", "process");
        GT_OK(mb__cuda_open(&config, &hw));
        printf("forced: %s\n", hw->caps.tables);
        hw->ops->close(hw);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    } else if (!strcmp(what, "mps")) {
        setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/mps", 1);
        expect_refusal("MPS named in the environment", "MPS");
    }
    printf("RESULT refused %s\n", what);
    return 0;
}
