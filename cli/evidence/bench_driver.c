/* SPDX-License-Identifier: MIT */
/*
 * bench_driver.c - `moonbright bench driver`: where the time of the vendor's own allocation goes:
 * addresses (bookkeeping), frames (physical), page tables, and the return of all three, each by its
 * own call of the driver, with 2 MB handles and with one handle, beside cuMemAlloc as a whole.
 *
 * The driver does not split its flush from the rest: an unmap contains one, a map of new addresses
 * none, so their difference is told as the bound of it. MoonBright is not open here: these are the
 * figures of a program without it.
 *
 * LOADING  libcuda by dlopen, as the command must run where there is none; the few types that are
 *          needed are written out as the driver's documentation defines them (CUDA 10.2 and on).
 */
#include "evidence.h"
#include "run.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HANDLE_BYTES ((size_t)2 << 20)
#define ROW_LIMIT_NS ((uint64_t)1000000000)

typedef unsigned long long handle;

/* CUmemAllocationProp, CUmemAccessDesc: device memory, read and write. */
struct properties {
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
};
struct access {
    int location_type, location_id, flags;
};

struct driver {
    struct bench_run *run;
    void *library;
    int device;
    void *context;
    char name[96];
    int (*init)(unsigned), (*device_get)(int *, int), (*device_name)(char *, int, int);
    int (*retain)(void **, int), (*set_current)(void *), (*release_primary)(int);
    int (*reserve)(handle *, size_t, size_t, handle, unsigned long long);
    int (*unreserve)(handle, size_t);
    int (*create)(handle *, size_t, const struct properties *, unsigned long long);
    int (*release)(handle), (*map)(handle, size_t, size_t, handle, unsigned long long);
    int (*unmap)(handle, size_t), (*set_access)(handle, size_t, const struct access *, size_t);
    int (*alloc)(handle *, size_t), (*free)(handle);
    int failure;              /* the first result that was not 0 */
    const char *failing_call; /* of it */
};

enum step { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, UNRESERVE, STEPS };
static const char *const step_names[STEPS] = {
    "bookkeeping: cuMemAddressReserve", "physical: cuMemCreate", "page table: cuMemMap",
    "page table: cuMemSetAccess",       "unmap: cuMemUnmap",     "physical: cuMemRelease",
    "bookkeeping: cuMemAddressFree",
};

/* Keeps the first failure; what is undone after it goes on. */
static bool ok(struct driver *d, int result, const char *call)
{
    if (result && !d->failure) {
        d->failure = result;
        d->failing_call = call;
    }
    return !result;
}

/* Name and place of each symbol. */
static bool load(struct driver *d)
{
    const struct {
        const char *name;
        void *place;
    } symbols[] = {{"cuInit", &d->init},
                   {"cuDeviceGet", &d->device_get},
                   {"cuDeviceGetName", &d->device_name},
                   {"cuDevicePrimaryCtxRetain", &d->retain},
                   {"cuCtxSetCurrent", &d->set_current},
                   {"cuDevicePrimaryCtxRelease_v2", &d->release_primary},
                   {"cuMemAddressReserve", &d->reserve},
                   {"cuMemAddressFree", &d->unreserve},
                   {"cuMemCreate", &d->create},
                   {"cuMemRelease", &d->release},
                   {"cuMemMap", &d->map},
                   {"cuMemUnmap", &d->unmap},
                   {"cuMemSetAccess", &d->set_access},
                   {"cuMemAlloc_v2", &d->alloc},
                   {"cuMemFree_v2", &d->free}};

    d->library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; d->library && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(d->library, symbols[i].name);

        if (!found) {
            d->failing_call = symbols[i].name;
            return false;
        }
        memcpy(symbols[i].place, &found, sizeof(found));
    }
    return d->library != NULL;
}

static bool open_context(struct driver *d)
{
    return ok(d, d->init(0), "cuInit") &&
           ok(d, d->device_get(&d->device, (int)d->run->ordinal), "cuDeviceGet") &&
           ok(d, d->device_name(d->name, sizeof(d->name), d->device), "cuDeviceGetName") &&
           ok(d, d->retain(&d->context, d->device), "cuDevicePrimaryCtxRetain") &&
           ok(d, d->set_current(d->context), "cuCtxSetCurrent");
}

/* ------------------------------------------------------------ one cycle */

struct cycle {
    size_t bytes, each; /* of all, of a handle */
    handle va, *handles;
    unsigned made, mapped;
    uint64_t ns[STEPS];
};

static void forward(struct driver *d, struct cycle *c)
{
    const struct properties p = {.type = 1, .location_type = 1, .location_id = d->device};
    const struct access rw = {.location_type = 1, .location_id = d->device, .flags = 3};
    unsigned count = (unsigned)(c->bytes / c->each);
    uint64_t t[5];

    t[0] = cli_now_ns();
    if (!ok(d, d->reserve(&c->va, c->bytes, 0, 0, 0), "cuMemAddressReserve"))
        return;
    t[1] = cli_now_ns();
    while (c->made < count && ok(d, d->create(&c->handles[c->made], c->each, &p, 0), "cuMemCreate"))
        c->made++;
    t[2] = cli_now_ns();
    if (c->made < count)
        return;
    while (c->mapped < c->made &&
           ok(d, d->map(c->va + c->mapped * c->each, c->each, 0, c->handles[c->mapped], 0),
              "cuMemMap"))
        c->mapped++;
    t[3] = cli_now_ns();
    if (c->mapped == count)
        ok(d, d->set_access(c->va, c->bytes, &rw, 1), "cuMemSetAccess");
    t[4] = cli_now_ns();
    for (unsigned i = 0; i < 4; i++)
        c->ns[RESERVE + i] = t[i + 1] - t[i];
}

/* Also what a failed cycle has made. */
static void back(struct driver *d, struct cycle *c)
{
    uint64_t t[4];

    t[0] = cli_now_ns();
    if (c->mapped)
        ok(d, d->unmap(c->va, c->mapped * c->each), "cuMemUnmap");
    t[1] = cli_now_ns();
    for (unsigned i = 0; i < c->made; i++)
        ok(d, d->release(c->handles[i]), "cuMemRelease");
    t[2] = cli_now_ns();
    if (c->va)
        ok(d, d->unreserve(c->va, c->bytes), "cuMemAddressFree");
    t[3] = cli_now_ns();
    for (unsigned i = 0; i < 3; i++)
        c->ns[UNMAP + i] = t[i + 1] - t[i];
}

static void tell(struct driver *d, const char *what, const char *how, size_t bytes,
                 const struct histogram *h)
{
    struct figure f = bench_figure(d->run, "driver", what, how, false);

    f.metric = "host";
    f.x = (double)bytes;
    f.x_unit = "bytes";
    bench_add_times(d->run, f, h);
}

static void cycles(struct driver *d, size_t bytes, bool one_handle)
{
    static struct histogram h[STEPS]; /* large, and one runs at a time */
    struct cycle c = {.bytes = bytes, .each = one_handle ? bytes : HANDLE_BYTES};
    unsigned samples = d->run->quick ? 20 : 1000;
    uint64_t started = cli_now_ns();

    memset(h, 0, sizeof(h));
    c.handles = calloc(bytes / c.each, sizeof(*c.handles));
    if (!c.handles)
        return;
    for (unsigned i = 0; i < samples + 2 && !d->failure; i++) {
        if (h[0].count >= 5 && cli_now_ns() - started > ROW_LIMIT_NS)
            break;
        c.va = 0;
        c.made = c.mapped = 0;
        forward(d, &c);
        back(d, &c);
        for (unsigned s = 0; s < STEPS && i >= 2 && !d->failure; s++)
            histogram_add(&h[s], c.ns[s]);
    }
    for (unsigned s = 0; s < STEPS && !d->failure; s++)
        tell(d, step_names[s], one_handle ? "one handle" : "2 MB handles", bytes, &h[s]);
    free(c.handles);
}

static void whole(struct driver *d, size_t bytes)
{
    static struct histogram h[2]; /* large, and one runs at a time */
    unsigned samples = d->run->quick ? 20 : 1000;
    uint64_t started = cli_now_ns();

    memset(h, 0, sizeof(h));
    for (unsigned i = 0; i < samples + 2 && !d->failure; i++) {
        handle at = 0;
        uint64_t t[3];

        if (h[0].count >= 5 && cli_now_ns() - started > ROW_LIMIT_NS)
            break;
        t[0] = cli_now_ns();
        if (!ok(d, d->alloc(&at, bytes), "cuMemAlloc"))
            break;
        t[1] = cli_now_ns();
        ok(d, d->free(at), "cuMemFree");
        t[2] = cli_now_ns();
        for (unsigned k = 0; k < 2 && i >= 2; k++)
            histogram_add(&h[k], t[k + 1] - t[k]);
    }
    if (!d->failure) {
        tell(d, "whole: cuMemAlloc", "cuMemAlloc", bytes, &h[0]);
        tell(d, "whole: cuMemFree", "cuMemAlloc", bytes, &h[1]);
    }
}

/* ------------------------------------------------------------ the bench */

static void measure(struct driver *d)
{
    static const size_t sizes[] = {2u << 20,   16u << 20,       128u << 20,
                                   512u << 20, (size_t)2 << 30, (size_t)8 << 30};
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    struct figure_origin origin = {
        .machine = d->name, .commit = d->run->commit, .command = d->run->line, .time = when};

    if (gmtime_r(&now, &utc))
        strftime(when, sizeof(when), "%Y-%m-%d", &utc);
    d->run->origin = figures_origin(&d->run->set, &origin);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !d->failure; i++) {
        cycles(d, sizes[i], false);
        cycles(d, sizes[i], true);
        whole(d, sizes[i]);
    }
}

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL};
    struct driver d = {.run = &run};
    const struct cli_option extra[] = {BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_driver, extra, argc, argv, &done);

    if (code || done)
        return code;
    if (run.device.backend && strcmp(run.device.backend, "cuda") != 0)
        return cli_fail(CLI_BAD_INPUT, "bench driver",
                        "--backend is \"%.32s\"; the calls measured are of cuda's driver only",
                        run.device.backend);
    if (run.device.config || run.device.memory_bytes)
        return cli_fail(CLI_BAD_INPUT, "bench driver",
                        "--config and --device-memory shape MoonBright's device, and none is "
                        "opened here");
    if (!load(&d))
        return cli_fail(CLI_FAILED, "bench driver", "%s%s",
                        d.library ? "libcuda.so.1 lacks " : "libcuda.so.1 is not here",
                        d.library ? d.failing_call : ": this bench needs an NVIDIA driver");
    if (open_context(&d)) {
        measure(&d);
        (void)d.release_primary(d.device);
    }
    if (d.failure) {
        figures_free(&run.set);
        return cli_fail(CLI_FAILED, "bench driver", "%s answered %d", d.failing_call, d.failure);
    }
    return bench_run_end(&run, MB_OK);
}

const struct cli_command cli_bench_driver = {
    .name = "bench driver",
    .summary = "where the vendor's allocation spends its time, call by call",
    .help = "usage: moonbright bench driver [OPTION...]\n\n"
            "Needs an NVIDIA GPU and its driver, no privilege; MoonBright is not "
            "involved.\n\n"
            "  --backend cuda      the only one\n"
            "  --device N          which GPU, from 0\n" BENCH_RUN_QUICK_HELP
            "  --commit TEXT       of the tree that was built, for the JSON\n"
            "  --json              one JSON object instead of a table\n",
    .run = run,
};
