/* SPDX-License-Identifier: MIT */
/* gpu.c - helpers of the GPU tests; see gpu.h. */
#include "gpu.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

static int arg_count;
static char **args;

void gt_fail(const char *file, int line, const char *format, ...)
{
    va_list list;

    printf("FAIL: %s:%d: ", file, line);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    fflush(stdout);
    exit(1);
}

void gt_skip(const char *reason)
{
    printf("SKIP: %s\n", reason);
    exit(77);
}

const char *gt_arg(const char *key, const char *fallback)
{
    size_t n = strlen(key);

    for (int i = 2; i < arg_count; i++) {
        if (!strncmp(args[i], key, n) && args[i][n] == '=')
            return args[i] + n + 1;
    }
    return fallback;
}

uint64_t gt_arg_u64(const char *key, uint64_t fallback)
{
    const char *text = gt_arg(key, NULL);

    return text ? strtoull(text, NULL, 0) : fallback;
}

double gt_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

void *gt_symbol(struct gt *t, const char *name)
{
    void *p = dlsym(t->cu->handle, name);

    if (!p)
        GT_FAIL("libcuda has no %s", name);
    return p;
}

void gt_open(struct gt *t, const char *tables)
{
    struct mb_hw_config config = {.tables = tables,
                                  .force = gt_arg_u64("force", 0) != 0,
                                  .helper_engine = gt_arg("helper_engine", NULL),
                                  .helper_wait = gt_arg("helper_wait", NULL),
                                  .helper_end = gt_arg("helper_end", NULL),
                                  .helper_slice_us = (uint32_t)gt_arg_u64("helper_slice_us", 0),
                                  .walk_views = gt_arg("walk_views", NULL),
                                  .kernels = gt_arg("kernels", NULL)};

    memset(t, 0, sizeof(*t));
    GT_OK(mb__cuda_open(&config, &t->hw));
    t->dev = mb__cuda(t->hw);
    t->cu = t->dev->cu;
    GT_CU(t->cu->ctx_set(t->dev->ctx));
    GT_CU(t->cu->module_function(&t->peek, t->dev->module, "mb_peek"));
    GT_CU(t->cu->module_function(&t->poke, t->dev->module, "mb_poke"));
    GT_CU(t->cu->module_function(&t->touch, t->dev->module, "mb_touch"));
    t->tmpl_rw =
        mb_fmt_leaf_template(t->hw->caps.format, MB_FRAME_SHIFT,
                             mb_fmt_user_flags(t->hw->caps.format, 1), MB_AP_VID, t->hw->caps.kind);
    t->tmpl_ro =
        mb_fmt_leaf_template(t->hw->caps.format, MB_FRAME_SHIFT,
                             mb_fmt_user_flags(t->hw->caps.format, 0), MB_AP_VID, t->hw->caps.kind);
}

void gt_pool(struct gt *t, uint64_t slab_bytes, unsigned slabs)
{
    uint32_t per = (uint32_t)(slab_bytes / GT_FRAME);

    t->home_bytes = slab_bytes * slabs;
    t->slabs = slabs;
    t->slab = calloc(slabs, sizeof(*t->slab));
    t->pfn = calloc((size_t)per * slabs, sizeof(*t->pfn));
    t->home = calloc((size_t)per * slabs, sizeof(*t->home));
    GT_OK(t->hw->ops->va_reserve(t->hw, t->home_bytes, MB_CUDA_PIECE_BYTES, &t->home_va));
    for (unsigned s = 0; s < slabs; s++) {
        GT_OK(t->hw->ops->slab_acquire(t->hw, slab_bytes, mb__va_add(t->home_va, s * slab_bytes),
                                       &t->slab[s]));
        for (uint32_t i = 0; i < per; i++) {
            t->pfn[t->frames] = t->slab[s].pfns
                                    ? t->slab[s].pfns[i]
                                    : (mb_pfn){t->slab[s].first.n + i * (uint32_t)MB_FRAME_PFNS};
            t->home[t->frames] = t->slab[s].home.addr + i * GT_FRAME;
            t->frames++;
        }
    }
}

void gt_window(struct gt *t, unsigned pieces)
{
    mb_va va;

    GT_OK(t->hw->ops->va_reserve(t->hw, pieces * MB_CUDA_PIECE_BYTES, MB_CUDA_PIECE_BYTES, &va));
    GT_OK(t->hw->ops->tree_adopt(t->hw, va, pieces * MB_CUDA_PIECE_BYTES, &t->view));
    t->slots = pieces * MB_CUDA_LEAVES;
}

void gt_close(struct gt *t)
{
    uint64_t bytes = t->view.bytes;
    mb_va va = t->view.va;

    GT_CU(t->cu->ctx_sync());
    if (bytes) {
        t->hw->ops->tree_disown(t->hw, &t->view);
        GT_OK(t->hw->ops->va_release(t->hw, va, bytes));
    }
    for (unsigned s = 0; s < t->slabs; s++)
        GT_OK(t->hw->ops->slab_release(t->hw, &t->slab[s]));
    if (t->home_bytes)
        GT_OK(t->hw->ops->va_release(t->hw, t->home_va, t->home_bytes));
    free(t->slab);
    free(t->pfn);
    free(t->home);
    t->hw->ops->close(t->hw);
}

struct mb_hw_stream *gt_stream(struct gt *t)
{
    struct mb_hw_stream *s;
    mb_stream native;

    GT_OK(t->hw->ops->stream_create(t->hw, &native));
    GT_OK(t->hw->ops->stream_open(t->hw, native, &s));
    return s;
}

struct gt_words gt_words(struct gt *t, size_t count)
{
    struct gt_words w;
    void *p;

    GT_CU(t->cu->host_alloc(&p, count * 8, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_MAPPED));
    memset(p, 0, count * 8);
    w.host = p;
    GT_CU(t->cu->host_device_ptr(&w.device, p, 0));
    return w;
}

void gt_peek(struct gt *t, struct mb_hw_stream *s, struct gt_words addresses, uint32_t count,
             struct gt_words out)
{
    void *params[] = {&addresses.device, &count, &out.device};

    GT_CU(t->cu->launch(t->peek, (count + 127) / 128, 1, 1, 128, 1, 1, 0, s->native, params, NULL));
}

void gt_poke(struct gt *t, struct mb_hw_stream *s, struct gt_words addresses, uint32_t count,
             struct gt_words values)
{
    void *params[] = {&addresses.device, &count, &values.device};

    GT_CU(t->cu->launch(t->poke, (count + 127) / 128, 1, 1, 128, 1, 1, 0, s->native, params, NULL));
}

void gt_touch(struct gt *t, struct mb_hw_stream *s, uint64_t base, uint64_t stride, uint32_t count,
              uint64_t first)
{
    void *params[] = {&base, &stride, &count, &first};

    GT_CU(
        t->cu->launch(t->touch, (count + 127) / 128, 1, 1, 128, 1, 1, 0, s->native, params, NULL));
}

void gt_sync(struct gt *t, struct mb_hw_stream *s)
{
    cu_result result = t->cu->stream_sync(s->native);

    if (result) {
        enum mb_err health = t->hw->ops->health(t->hw);

        GT_FAIL("stream: CUDA error %d; health %s: %s", result, mb_error_name(health),
                health ? mb_error_detail() : "");
    }
}

void gt_map_in(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count,
               const mb_pfn *pfns, uint64_t tmpl, bool invalidate, uint32_t part)
{
    enum { PARTS = 64 };
    struct mb_hw_cmd cmd[PARTS + 3];
    unsigned n = 0;

    part = part < (count + PARTS - 1) / PARTS ? (count + PARTS - 1) / PARTS : part;
    for (uint32_t at = 0; at < count; at += part)
        cmd[n++] = (struct mb_hw_cmd){.kind = MB_HW_LEAVES,
                                      .leaves = {.view = &t->view,
                                                 .first = first + at,
                                                 .count = part < count - at ? part : count - at,
                                                 .pfns = pfns ? pfns + at : NULL,
                                                 .tmpl = tmpl}};
    cmd[n++] = (struct mb_hw_cmd){.kind = MB_HW_BARRIER};
    if (invalidate) {
        cmd[n++] = (struct mb_hw_cmd){
            .kind = MB_HW_INVALIDATE,
            .inval = {.va = mb__va_add(t->view.va, first * GT_FRAME), .bytes = count * GT_FRAME}};
        cmd[n++] = (struct mb_hw_cmd){.kind = MB_HW_MEMBAR};
    }
    GT_OK(mb__cuda_submit_fence(t->hw, s, cmd, n, NULL));
}

void gt_map(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count,
            const mb_pfn *pfns, uint64_t tmpl, bool invalidate)
{
    gt_map_in(t, s, first, count, pfns, tmpl, invalidate, count);
}

void gt_unmap(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count)
{
    gt_map(t, s, first, count, NULL, 0, true);
}

uint64_t gt_slot_va(const struct gt *t, uint32_t slot)
{
    return t->view.va.addr + slot * GT_FRAME;
}

void gt_shuffle(struct mb_rng *rng, uint32_t *list, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)mb__rng_below(rng, i);
        uint32_t x = list[i - 1];

        list[i - 1] = list[j];
        list[j] = x;
    }
}

/* A test that hangs or crashes says where. */
static void on_alarm(int number)
{
    void *frames[32];

    backtrace_symbols_fd(frames, backtrace(frames, 32), 1);
    _exit(number == SIGALRM ? 124 : 139);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } tests[] = {
        {"discover", gt_test_discover}, {"window", gt_test_window},   {"random", gt_test_random},
        {"streams", gt_test_streams},   {"graph", gt_test_graph},     {"reset", gt_test_reset},
        {"fork", gt_test_fork},         {"broken", gt_test_broken},   {"victim", gt_test_victim},
        {"kill", gt_test_kill},         {"refused", gt_test_refused}, {"sweep", gt_test_sweep},
        {"exit", gt_test_exit},         {"bench", gt_test_bench},     {"ready", gt_test_ready},
        {"variant", gt_test_variant},   {"scrub", gt_test_scrub}};

    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)signal(SIGALRM, on_alarm);
    if (argc > 1 && strcmp(argv[1], "exit") != 0)
        (void)signal(SIGSEGV, on_alarm);
    arg_count = argc;
    args = argv;
    (void)alarm((unsigned)gt_arg_u64("alarm", 30));
    for (unsigned i = 0; argc > 1 && i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (!strcmp(argv[1], tests[i].name)) {
            int rc = tests[i].run();

            printf("%s: %s\n", rc ? "FAIL" : "PASS", argv[1]);
            return rc;
        }
    }
    fprintf(stderr, "usage: gputest NAME [KEY=VALUE]...\n");
    return 2;
}
