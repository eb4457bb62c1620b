/* SPDX-License-Identifier: MIT */
/*
 * From "key:value,key:value" to struct mb__config. Values that are lists (check:) are texts to
 * base's parser and split here.
 */
#include "api/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

enum {
    CHECK_TEXT = 64,
    PROFILE_TEXT = 256, /* as in struct mb_hw_config */
    TRACE_TEXT = 256,   /* as in struct mb__config, also of nvtx */
    HISTORY_MAX = 1 << 24,
    AUDIT_TEXT = 256, /* as in struct mb_vm_config */
    DEFAULT_WAIT_MS = 10000,
};

static const uint64_t BY_DEFAULT = UINT64_MAX; /* a key that nobody gave */

/* What base's parser fills. Owner: the stack of mb__config_read(). */
struct texts {
    const char *backend, *tables, *model;
    const char *helper_engine, *helper_wait, *helper_end, *kernels, *walk_views, *scrub;
    uint64_t helper_slice;
    int policy, growth, capture;
    uint64_t device_memory, seed, limit, home_bytes, ring_bytes, bin_bytes, window_bytes;
    uint64_t release_threshold, wait_ms;
    bool explore, oracle, force, driver_home, walk_ahead, self_heal, early_maps, deferred, guard,
        cache;
    char check[CHECK_TEXT], profile[PROFILE_TEXT], audit[AUDIT_TEXT], registry[AUDIT_TEXT];
    char trace[TRACE_TEXT], nvtx[TRACE_TEXT];
    uint64_t history;
    int trace_format;
};

static const char *const backends[] = {"sim", "cuda", "hip", NULL};
static const char *const tables[] = {"inline", "isolated", "driver", NULL};
static const char *const engines[] = {"list", "apart", "0", "1", "2", "3", "4",
                                      "5",    "6",     "7", "8", "9", NULL};
static const char *const waits[] = {"hold", "switch", NULL};
static const char *const ends[] = {"drop", "drain", NULL};
static const char *const views[] = {"close", "keep", NULL};
static const char *const scrubbers[] = {"host", "device", NULL};
static const char *const kernel_forms[] = {"plain", "fast", NULL};
static const char *const models[] = {"h200", "a100", "mi210", NULL};
static const char *const policies[] = {"auto", "inline", "fresh", NULL}; /* enum mb_vm_policy */
static const char *const growths[] = {"tight", "fast", "patient", "independent",
                                      NULL};                            /* enum mb__growth */
static const char *const captures[] = {"auto", "check", "trust", NULL}; /* enum mb__capture */
static const char *const trace_formats[] = {"csv", "rmm", NULL};

#define FIELD(name) offsetof(struct texts, name)

static const struct mb_conf_key keys[] = {
    {"backend", MB_CONF_NAME, FIELD(backend), 0, 0, backends, "who serves the device"},
    {"tables", MB_CONF_NAME, FIELD(tables), 0, 0, tables, "who writes page tables (cuda)"},
    {"model", MB_CONF_NAME, FIELD(model), 0, 0, models, "which GPU the software GPU imitates"},
    {"device_memory", MB_CONF_BYTES, FIELD(device_memory), (uint64_t)64 << 20, 0, NULL,
     "size of the software GPU's memory, a cap elsewhere"},
    {"seed", MB_CONF_U64, FIELD(seed), 0, 0, NULL, "schedule of the software GPU"},
    {"explore", MB_CONF_BOOL, FIELD(explore), 0, 0, NULL, "run what is runnable in random order"},
    {"oracle", MB_CONF_BOOL, FIELD(oracle), 0, 0, NULL, "judge every access of the software GPU"},
    {"driver_home", MB_CONF_BOOL, FIELD(driver_home), 0, 0, NULL,
     "imitate homes mapped by a driver"},
    {"walk_ahead", MB_CONF_BOOL, FIELD(walk_ahead), 0, 0, NULL, "walks run past a block's end"},
    {"self_heal", MB_CONF_BOOL, FIELD(self_heal), 0, 0, NULL,
     "faults on stale invalid entries replay"},
    {"force", MB_CONF_BOOL, FIELD(force), 0, 0, NULL, "go on though others use the GPU (cuda)"},
    {"helper_engine", MB_CONF_NAME, FIELD(helper_engine), 0, 0, engines,
     "copy engine of helper channels (cuda)"},
    {"helper_wait", MB_CONF_NAME, FIELD(helper_wait), 0, 0, waits,
     "how prepared invalidates wait (cuda)"},
    {"helper_end", MB_CONF_NAME, FIELD(helper_end), 0, 0, ends,
     "what becomes of them at close (cuda)"},
    {"helper_slice_us", MB_CONF_U64, FIELD(helper_slice), 0, 1000000, NULL,
     "how long they keep the engine from others; 0: 4 us (cuda)"},
    {"early_maps", MB_CONF_BOOL, FIELD(early_maps), 0, 0, NULL,
     "the driver fills empty addresses before the stream gets there (cuda)"},
    {"walk_views", MB_CONF_NAME, FIELD(walk_views), 0, 0, views,
     "views of page tables after a walk (cuda)"},
    {"scrub", MB_CONF_NAME, FIELD(scrub), 0, 0, scrubbers,
     "who compares inline tables with the record (cuda)"},
    {"kernels", MB_CONF_NAME, FIELD(kernels), 0, 0, kernel_forms, "forms of pte_pop (cuda)"},
    {"policy", MB_CONF_CHOICE, FIELD(policy), 0, 0, policies, "how stale translations are avoided"},
    {"deferred", MB_CONF_BOOL, FIELD(deferred), 0, 0, NULL, "frames return before the invalidate"},
    {"guard", MB_CONF_BOOL, FIELD(guard), 0, 0, NULL, "an unused group behind each window"},
    {"limit", MB_CONF_BYTES, FIELD(limit), 0, 0, NULL, "of memory held from the driver; 0: none"},
    {"home_space", MB_CONF_BYTES, FIELD(home_bytes), 0, 0, NULL,
     "addresses for frames; 0: default"},
    {"window_space", MB_CONF_BYTES, FIELD(ring_bytes), 0, 0, NULL,
     "addresses for windows; 0: default"},
    {"growth", MB_CONF_CHOICE, FIELD(growth), 0, 0, growths,
     "what comes first: composing, growing, waiting"},
    {"capture", MB_CONF_CHOICE, FIELD(capture), 0, 0, captures,
     "is it asked whether a stream is being captured"},
    {"cache", MB_CONF_BOOL, FIELD(cache), 0, 0, NULL, "keep freed blocks ready per thread"},
    {"cache_bytes", MB_CONF_BYTES, FIELD(bin_bytes), 0, 0, NULL,
     "of such blocks below 1 MiB, per shard of threads"},
    {"window_cache", MB_CONF_BYTES, FIELD(window_bytes), 0, 0, NULL, "of unused windows"},
    {"release_threshold", MB_CONF_BYTES, FIELD(release_threshold), 0, 0, NULL,
     "kept by the default pool after a synchronize"},
    {"wait_ms", MB_CONF_U64, FIELD(wait_ms), 1, UINT32_MAX, NULL,
     "longest host wait of a failing request"},
    {"profile", MB_CONF_TEXT, FIELD(profile), 1, PROFILE_TEXT, NULL, "measured facts, by probe -o"},
    {"audit", MB_CONF_TEXT, FIELD(audit), 1, AUDIT_TEXT, NULL, "file that tells every mapping"},
    {"registry", MB_CONF_TEXT, FIELD(registry), 1, AUDIT_TEXT, NULL,
     "file in which the processes of a device claim frames"},
    {"trace", MB_CONF_TEXT, FIELD(trace), 1, TRACE_TEXT, NULL,
     "file for every malloc and free; %d ordinal, %p process"},
    {"trace_format", MB_CONF_CHOICE, FIELD(trace_format), 0, 0, trace_formats, "of that file"},
    {"history", MB_CONF_U64, FIELD(history), 0, HISTORY_MAX, NULL, "calls kept for snapshots"},
    {"nvtx", MB_CONF_TEXT, FIELD(nvtx), 0, TRACE_TEXT, NULL,
     "ranges for profilers: yes, no, or the path of a library"},
    {"check", MB_CONF_TEXT, FIELD(check), 0, CHECK_TEXT, NULL, "redzone|poison|uaf|leaks"},
};

static enum mb_err read_checks(const char *text, unsigned *out)
{
    static const char *const names[] = {"redzone", "poison", "uaf", "leaks"}; /* enum mb__check */
    unsigned checks = 0;

    while (*text) {
        size_t bytes = strcspn(text, "|");
        unsigned i = 0;

        if (!bytes || (text[bytes] && !text[bytes + 1]))
            return mb__fail(MB_ERR_CONFIG,
                            "check: a name is missing beside a '|'; a single '|' stands between "
                            "two of redzone, poison, uaf and leaks");
        while (i < 4 && (strlen(names[i]) != bytes || strncmp(names[i], text, bytes) != 0))
            i++;
        if (i == 4)
            return mb__fail(MB_ERR_CONFIG,
                            "check: \"%.*s\" is unknown; known are redzone, poison, uaf and leaks, "
                            "joined by '|'",
                            (int)bytes, text);
        if (checks & 1u << i)
            return mb__fail(MB_ERR_CONFIG, "check: %s is given twice; leave one", names[i]);
        checks |= 1u << i;
        text += bytes;
        text += *text == '|';
    }
    *out = checks;
    return MB_OK;
}

/* "yes", "" or a path. */
static void read_nvtx(const char *text, char *out)
{
    bool yes = false;

    if (!*text)
        return;
    if (!mb__parse_bool(text, strlen(text), &yes))
        memcpy(out, text, strlen(text) + 1);
    else if (yes)
        memcpy(out, "yes", sizeof("yes"));
}

/* Where 0 is a default inside, no block fits into 1 byte either. */
static uint64_t bound(uint64_t bytes)
{
    return bytes == BY_DEFAULT ? 0 : bytes ? bytes : 1;
}

static void fill(const struct texts *texts, int ordinal, struct mb__config *out)
{
    *out = (struct mb__config){
        .hw = {.ordinal = ordinal,
               .device_memory_bytes = texts->device_memory,
               .seed = texts->seed,
               .model = texts->model,
               .tables = texts->tables,
               .explore = texts->explore,
               .no_oracle = !texts->oracle,
               .force = texts->force,
               .early_maps = texts->early_maps,
               .helper_engine = texts->helper_engine,
               .helper_wait = texts->helper_wait,
               .helper_end = texts->helper_end,
               .helper_slice_us = (uint32_t)texts->helper_slice,
               .walk_views = texts->walk_views,
               .kernels = texts->kernels,
               .scrub = texts->scrub,
               .driver_home = texts->driver_home,
               .walk_ahead = texts->walk_ahead,
               .self_heal = texts->self_heal},
        .vm = {.policy = (enum mb_vm_policy)texts->policy,
               .deferred = texts->deferred,
               .limit_bytes = texts->limit,
               .home_bytes = texts->home_bytes,
               .ring_bytes = texts->ring_bytes,
               .no_guard = !texts->guard},
        .backend = texts->backend,
        .growth = (enum mb__growth)texts->growth,
        .capture = (enum mb__capture)texts->capture,
        .no_bins = !texts->cache,
        .bin_bytes = bound(texts->bin_bytes),
        .window_bytes = bound(texts->window_bytes),
        .release_threshold = texts->release_threshold,
        .wait_ns = texts->wait_ms * 1000000,
        .history = texts->history,
        .trace_rmm = texts->trace_format == 1,
    };
}

enum mb_err mb__config_read(int ordinal, const char *text, struct mb__config *out)
{
    struct texts texts = {.oracle = true,
                          .guard = true,
                          .cache = true,
                          .bin_bytes = BY_DEFAULT,
                          .window_bytes = BY_DEFAULT,
                          .release_threshold = UINT64_MAX,
                          .wait_ms = DEFAULT_WAIT_MS};
    unsigned count = sizeof(keys) / sizeof(keys[0]), checks = 0;
    enum mb_err err =
        mb__conf_parse(getenv("MOONBRIGHT"), "MOONBRIGHT", keys, count, &texts, sizeof(texts));

    if (!err)
        err = mb__conf_parse(text, "config", keys, count, &texts, sizeof(texts));
    if (!err)
        err = read_checks(texts.check, &checks);
    if (err)
        return err;
    fill(&texts, ordinal, out);
    out->checks = checks;
    memcpy(out->trace, texts.trace, sizeof(out->trace));
    read_nvtx(texts.nvtx, out->nvtx);
    memcpy(out->hw.profile, texts.profile, sizeof(out->hw.profile));
    memcpy(out->vm.audit, texts.audit, sizeof(out->vm.audit));
    memcpy(out->vm.registry, texts.registry, sizeof(out->vm.registry));
    return MB_OK;
}
