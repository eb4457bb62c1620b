/* SPDX-License-Identifier: MIT */
/*
 * bench_scale.c - `moonbright bench scale`: the same mapping on several devices at once, in threads
 * of one process and in processes, the vendor's calls and MoonBright's device tables in one run.
 *
 * Every group of devices runs in processes made for it, so that nothing of a driver is inherited
 * and a dead one ends only its group. What they share is one page of memory: a barrier before every
 * timed turn, and the results. A device that ends early leaves the barrier.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "bench_rows.h"
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    DEVICES_MAX = 8,
    RESULTS_MAX = 16, /* rows of one device */
    TEXT_MAX = 160,
};

enum way { WAY_PROCESSES, WAY_THREADS, WAY_ONE_DEVICE };
static const char *const way_names[] = {"processes", "threads", "sharing one device"};

struct result {
    char what[24], how[64], note[TEXT_MAX];
    uint64_t bytes;
    unsigned samples;
    bool modelled;
    struct mb_spread host, complete, used;
};

struct device_result {
    struct result row[RESULTS_MAX];
    unsigned count;
    enum mb_err err;
    char detail[TEXT_MAX];
};

/* Shared by the processes of one group. */
struct group {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    unsigned members, waiting;
    uint64_t turn; /* grows when all were there */
    struct device_result device[DEVICES_MAX];
};

/* What was asked for; constant. */
struct scale {
    const char *config;
    uint64_t bytes, seed;
    unsigned samples, devices;
    bool no_vendor, one_device;
    enum way only; /* with `restricted` */
    bool restricted;
};

/* One device of a group. */
struct member {
    struct group *group;
    const struct scale *scale;
    enum way way;
    unsigned index, count; /* of the group */
    int ordinal;
    pthread_t thread;
};

/* ------------------------------------------------------------------ together */

static struct group *group_new(unsigned members)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    struct group *group =
        mmap(NULL, sizeof(*group), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (group == MAP_FAILED)
        return NULL;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_init(&cond);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&group->lock, &mutex);
    pthread_cond_init(&group->all_here, &cond);
    pthread_mutexattr_destroy(&mutex);
    pthread_condattr_destroy(&cond);
    group->members = members;
    return group;
}

/* lock held */
static void go_on(struct group *group)
{
    group->waiting = 0;
    group->turn++;
    pthread_cond_broadcast(&group->all_here);
}

static void await_turn(void *user)
{
    struct group *group = ((struct member *)user)->group;
    uint64_t turn;

    pthread_mutex_lock(&group->lock);
    turn = group->turn;
    if (++group->waiting >= group->members)
        go_on(group);
    while (group->turn == turn)
        pthread_cond_wait(&group->all_here, &group->lock);
    pthread_mutex_unlock(&group->lock);
}

static void leave(struct group *group)
{
    pthread_mutex_lock(&group->lock);
    group->members--;
    if (group->members && group->waiting >= group->members)
        go_on(group);
    pthread_mutex_unlock(&group->lock);
}

/* ------------------------------------------------------------------ one device */

static void on_row(void *user, const struct mb_bench_row *row)
{
    struct member *member = user;
    struct device_result *out = &member->group->device[member->index];
    struct result *result = &out->row[out->count];

    if (out->count == RESULTS_MAX ||
        (strcmp(row->what, "map") != 0 && strcmp(row->what, "unmap") != 0))
        return;
    /* How devices share the driver with one handle was not measured: the model would guess. */
    if (row->modelled && strstr(row->how, "one handle"))
        return;
    snprintf(result->what, sizeof(result->what), "%s", row->what);
    snprintf(result->how, sizeof(result->how), "%s", row->how);
    snprintf(result->note, sizeof(result->note), "%s", row->note);
    result->bytes = row->bytes;
    result->samples = row->samples;
    result->modelled = row->modelled;
    result->host = row->host;
    result->complete = row->complete;
    result->used = row->used;
    out->count++;
}

static void *measure(void *user)
{
    static const char *const names[] = {"map", "unmap"};
    struct member *member = user;
    struct device_result *out = &member->group->device[member->index];
    const struct scale *scale = member->scale;
    char config[1100];
    unsigned others = member->count - 1;
    struct mb_bench_options options = {
        .sizes = &scale->bytes,
        .size_count = 1,
        .samples = scale->samples,
        .seed = scale->seed + member->index,
        .no_vendor = scale->no_vendor,
        .vendor_ways = 2, /* 2 MB handles and one handle */
        .turn = await_turn,
        .turn_user = member,
        .crowd_threads = member->way == WAY_THREADS ? others : 0,
        .crowd_processes = member->way == WAY_PROCESSES ? others : 0,
        .crowd_sharers = member->way == WAY_ONE_DEVICE ? others : 0,
    };

    /* Device tables do not share a device. */
    snprintf(config, sizeof(config), "%s%s", scale->config,
             member->way == WAY_ONE_DEVICE && !strstr(scale->config, "tables:")
                 ? (*scale->config ? ",tables:driver" : "tables:driver")
                 : "");
    for (unsigned i = 0; !out->err && i < 2; i++) {
        options.name = names[i];
        out->err = mb_bench_run(member->ordinal, config, &options, on_row, member);
        if (out->err)
            snprintf(out->detail, sizeof(out->detail), "%s: %s", mb_error_name(out->err),
                     mb_error_detail());
    }
    leave(member->group);
    return NULL;
}

/* A process of its own shows itself one GPU only, so that no other one counts it as a user. */
static void hide_others(struct member *member)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    char one[64];

    if (list) {
        for (int i = 0; i < member->ordinal && *list; i++) {
            list += strcspn(list, ",");
            list += *list == ',';
        }
        snprintf(one, sizeof(one), "%.*s", (int)strcspn(list, ","), list);
    } else {
        snprintf(one, sizeof(one), "%d", member->ordinal);
    }
    if (strstr(member->scale->config, "backend:sim") || setenv("CUDA_VISIBLE_DEVICES", one, 1))
        return;
    member->ordinal = 0;
}

/* ------------------------------------------------------------------ groups */

/* In a process made for it: threads [first, first + count) of the members. */
static _Noreturn void serve(struct member *members, unsigned first, unsigned count)
{
    if (count && members[first].way == WAY_PROCESSES)
        hide_others(&members[first]);
    for (unsigned i = first; i < first + count; i++)
        if (pthread_create(&members[i].thread, NULL, measure, &members[i]))
            _exit(2);
    for (unsigned i = first; i < first + count; i++)
        (void)pthread_join(members[i].thread, NULL);
    exit(0);
}

/* False: a process ended otherwise than it should, and the others were ended, too. */
static bool wait_for_all(pid_t *pids, unsigned count)
{
    bool good = true;

    for (unsigned left = count; left; left--) {
        int status = 0;
        pid_t pid = wait(&status);

        for (unsigned i = 0; i < count; i++)
            if (pids[i] == pid)
                pids[i] = 0;
        if (pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status))
            continue;
        /* It may have left others at the barrier. */
        for (unsigned i = 0; good && i < count; i++)
            if (pids[i] > 0)
                (void)kill(pids[i], SIGTERM);
        good = false;
    }
    return good;
}

static bool run_group(const struct scale *scale, enum way way, unsigned count, struct group *group)
{
    unsigned processes = way == WAY_THREADS ? 1 : count;
    struct member members[DEVICES_MAX];
    pid_t pids[DEVICES_MAX], parent = getpid();

    for (unsigned i = 0; i < count; i++)
        members[i] = (struct member){.group = group,
                                     .scale = scale,
                                     .way = way,
                                     .index = i,
                                     .count = count,
                                     .ordinal = way == WAY_ONE_DEVICE ? 0 : (int)i};
    (void)fflush(NULL);
    for (unsigned i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0) {
            /* They wait at the barrier for those that were not made. */
            for (unsigned made = 0; made < i; made++)
                (void)kill(pids[made], SIGTERM);
            (void)wait_for_all(pids, i);
            return false;
        }
        if (pids[i])
            continue;
        /* Who ends the command ends its processes; nobody else would end those at the barrier. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
            _exit(2);
        serve(members, i, way == WAY_THREADS ? count : 1);
    }
    return wait_for_all(pids, processes);
}

/* ------------------------------------------------------------------ telling */

static double pick(const struct result *result)
{
    return isnan(result->complete.median_us) ? result->host.median_us : result->complete.median_us;
}

/* Row r of all devices: the slowest one's times, all medians in the note, and how many times as
 * long as alone. */
static void tell_row(struct rows *rows, const struct group *group, unsigned count, unsigned r,
                     enum way way, double *alone)
{
    const struct result *slowest = &group->device[0].row[r];
    char what[32], how[96], note[400];
    size_t used = 0;
    struct mb_bench_row row;

    for (unsigned i = 0; i < count; i++) {
        const struct result *result = &group->device[i].row[r];

        if (pick(result) > pick(slowest))
            slowest = result;
        used += (size_t)snprintf(note + used, sizeof(note) - used, "%s%.1f", i ? " " : "",
                                 pick(result));
        used = used < sizeof(note) ? used : sizeof(note) - 1;
    }
    if (count == 1)
        *alone = pick(slowest);
    snprintf(note + used, sizeof(note) - used, " us by device; value: times as long as alone%s%s",
             *slowest->note ? "; " : "", slowest->note);
    snprintf(what, sizeof(what), "%s x%u", slowest->what, count);
    snprintf(how, sizeof(how), "%s: %s", way_names[way], slowest->how);
    row = (struct mb_bench_row){.what = what,
                                .how = how,
                                .bytes = slowest->bytes,
                                .samples = slowest->samples,
                                .host = slowest->host,
                                .complete = slowest->complete,
                                .used = slowest->used,
                                .note = note,
                                .value = pick(slowest) / *alone,
                                .modelled = slowest->modelled};
    rows_add(rows, &row);
}

static int tell_group(struct rows *rows, const struct group *group, unsigned count, enum way way,
                      double *alone)
{
    unsigned least = group->device[0].count;

    for (unsigned i = 0; i < count; i++) {
        if (group->device[i].err)
            return cli_fail(CLI_FAILED, rows->command, "device %u of %u, %s: %s", i, count,
                            way_names[way], group->device[i].detail);
        least = group->device[i].count < least ? group->device[i].count : least;
    }
    for (unsigned r = 0; r < least; r++)
        tell_row(rows, group, count, r, way, &alone[r]);
    return CLI_OK;
}

static int run_way(struct rows *rows, const struct scale *scale, enum way way)
{
    double alone[RESULTS_MAX];
    int code = CLI_OK;

    for (unsigned i = 0; i < RESULTS_MAX; i++)
        alone[i] = NAN;
    for (unsigned count = 1; code == CLI_OK && count <= scale->devices; count++) {
        struct group *group = group_new(count);

        if (!group)
            return cli_fail(CLI_FAILED, rows->command, "no memory to share");
        if (run_group(scale, way, count, group))
            code = tell_group(rows, group, count, way, alone);
        else
            code = cli_fail(CLI_FAILED, rows->command, "%u %s: a process did not come to its end",
                            count, way_names[way]);
        (void)munmap(group, sizeof(*group));
    }
    return code;
}

/* Driver tables share a device; device tables do not, so there is no row of theirs. */
static int run_all(struct rows *rows, struct scale *scale)
{
    int code = CLI_OK;

    for (unsigned way = WAY_PROCESSES; code == CLI_OK && way <= WAY_THREADS; way++)
        if (!scale->restricted || scale->only == way)
            code = run_way(rows, scale, (enum way)way);
    if (code == CLI_OK && scale->one_device)
        code = run_way(rows, scale, WAY_ONE_DEVICE);
    return code;
}

/* Before the devices that are there have been measured in vain. */
static int check_count(const char *config, unsigned asked)
{
    int there = 0;

    /* None: opening the first one says why. */
    if (mb_device_count(config, &there) || there < 1 || asked <= (unsigned)there)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, cli_bench_scale.name,
                    "%u devices at once were asked for (--devices, default 2); this machine has %d",
                    asked, there);
}

/* Of a GPU that is forced the backend says what may be done. */
static bool shares_nothing(const char *config)
{
    return (strstr(config, "tables:inline") || strstr(config, "tables:isolated")) &&
           !strstr(config, "force:");
}

static int run(int argc, char **argv)
{
    struct device_options device = {.backend = NULL};
    struct scale scale = {.bytes = (uint64_t)2 << 30, .seed = 1, .samples = 5, .devices = 2};
    struct rows rows = {.command = cli_bench_scale.name};
    bool threads = false, processes = false;
    const struct cli_option table[] = {{"--backend", CLI_TEXT, &device.backend},
                                       {"--config", CLI_TEXT, &device.config},
                                       {"--device-memory", CLI_BYTES, &device.memory_bytes},
                                       {"--devices", CLI_UNSIGNED, &scale.devices},
                                       {"--threads", CLI_FLAG, &threads},
                                       {"--processes", CLI_FLAG, &processes},
                                       {"--one-device", CLI_FLAG, &scale.one_device},
                                       {"--size", CLI_BYTES, &scale.bytes},
                                       {"--samples", CLI_UNSIGNED, &scale.samples},
                                       {"--seed", CLI_U64, &scale.seed},
                                       {"--no-vendor", CLI_FLAG, &scale.no_vendor},
                                       {"--commit", CLI_TEXT, &rows.commit},
                                       {"--json", CLI_FLAG, &rows.as_json},
                                       {NULL, CLI_FLAG, NULL}};
    char line[1024], config[1024];
    bool done = false;
    int count = 0, code;

    rows_command_line(argc, argv, line, sizeof(line));
    code = cli_parse(&cli_bench_scale, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, rows.command, "\"%.64s\" was given; expected options only",
                        argv[1]);
    if (!scale.devices || scale.devices > DEVICES_MAX || !scale.samples || !scale.bytes ||
        scale.bytes % ((uint64_t)2 << 20))
        return cli_fail(CLI_BAD_INPUT, rows.command,
                        "1 to %d devices, 1 sample or more and a multiple of 2MiB are allowed",
                        DEVICES_MAX);
    scale.restricted = threads != processes;
    scale.only = threads ? WAY_THREADS : WAY_PROCESSES;
    code = device_config(rows.command, &device, config, sizeof(config));
    if (!code)
        code = check_count(config, scale.devices);
    if (code)
        return code;
    if (scale.one_device && shares_nothing(config))
        return cli_fail(CLI_BAD_INPUT, rows.command,
                        "--one-device: device tables do not share a device; give tables:driver or "
                        "leave tables out");
    scale.config = config;
    rows_begin(&rows, 0, config, line, scale.seed);
    code = run_all(&rows, &scale);
    rows_end(&rows);
    return code;
}

const struct cli_command cli_bench_scale = {
    .name = "bench scale",
    .summary = "mapping on several devices at once, in threads and in processes",
    .help =
        "usage: moonbright bench scale [OPTION...]\n\n"
        "  --devices N         most devices at once, 1 to 8 (default 2); every number from 1 on is "
        "run\n"
        "  --threads           only as threads of one process\n"
        "  --processes         only as processes, one device each (default: both)\n"
        "  --one-device        also as processes that share device 0\n"
        "  --backend NAME      sim or cuda (default: as mb_open chooses)\n"
        "  --config TEXT       more configuration: tables:isolated, force:yes, ...\n"
        "  --device-memory N   size of each software GPU's memory\n"
        "  --size N            bytes of one mapping (default 2GiB, in 2 MiB frames)\n"
        "  --samples N         per line (default 5)\n"
        "  --seed N            of the frame lists (default 1)\n"
        "  --no-vendor         leave the vendor's own calls out\n"
        "  --commit TEXT       of the tree that was built, for the JSON\n"
        "  --json              one JSON object instead of a table\n\n"
        "Every timed turn begins on all devices together. A line shows the slowest device; its "
        "note\n"
        "has the median of each, and its value says how many times as long as alone that is. On "
        "the\n"
        "software GPU times are modelled, the driver's with the lock that two H200 were seen to "
        "share.\n",
    .run = run,
};
