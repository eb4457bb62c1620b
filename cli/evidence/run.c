/* SPDX-License-Identifier: MIT */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench_rows.h"

enum { BACKENDS_MAX = 16 };

int bench_run_parse(struct bench_run *run, const struct cli_command *command,
                    const struct cli_option *extra, int argc, char **argv, bool *done)
{
    struct cli_option table[RUN_OPTIONS_MAX] = {
        {"--backend", CLI_TEXT, &run->device.backend},
        {"--config", CLI_TEXT, &run->device.config},
        {"--device", CLI_UNSIGNED, &run->ordinal},
        {"--device-memory", CLI_BYTES, &run->device.memory_bytes},
        {"--commit", CLI_TEXT, &run->commit},
        {"--json", CLI_FLAG, &run->as_json},
    };
    unsigned used = 6;
    int count = 0, code;

    for (; extra && extra->name && used < RUN_OPTIONS_MAX - 1; extra++)
        table[used++] = *extra;
    run->command = command;
    run->seed = run->seed ? run->seed : 1;
    rows_command_line(argc, argv, run->line, sizeof(run->line));
    code = cli_parse(command, table, argc, argv, &count, done);
    if (code || *done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, command->name, "\"%.64s\" was given; expected options only",
                        argv[1]);
    run->random = run->seed;
    return device_config(command->name, &run->device, run->config, sizeof(run->config));
}

/* "AMD EPYC 9654", for figures in real time. */
static void host_name(char *buffer, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(buffer, size, "this host");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "model name : %127[^\n]", buffer) == 1)
            break;
    if (file)
        fclose(file);
}

static void driver_of(const char *backend, char *driver, size_t size)
{
    struct mb_backend_info list[BACKENDS_MAX];
    unsigned count = 0;

    driver[0] = '\0';
    if (mb_backends(list, BACKENDS_MAX, &count))
        return;
    for (unsigned i = 0; i < count && i < BACKENDS_MAX; i++)
        if (strcmp(list[i].name, backend) == 0)
            snprintf(driver, size, "%s", list[i].driver);
}

static void set_origin(struct bench_run *run)
{
    char host[128], machine[320], driver[64], when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    struct figure_origin origin = {.machine = machine,
                                   .driver = driver,
                                   .commit = run->commit,
                                   .command = run->line,
                                   .time = when};

    if (gmtime_r(&now, &utc))
        strftime(when, sizeof(when), "%Y-%m-%d", &utc);
    host_name(host, sizeof(host));
    driver_of(mb_device_backend(run->dev), driver, sizeof(driver));
    if (run->modelled)
        snprintf(machine, sizeof(machine), "%s on %s", mb_device_name(run->dev), host);
    else
        snprintf(machine, sizeof(machine), "%s, %s", mb_device_name(run->dev),
                 mb_device_tables(run->dev));
    run->origin = figures_origin(&run->set, &origin);
}

enum mb_err bench_run_open(struct bench_run *run, const char *more)
{
    char config[1200];
    enum mb_err err;

    snprintf(config, sizeof(config), "%s%s%s", run->config, *run->config && *more ? "," : "", more);
    err = mb_open((int)run->ordinal, config, &run->dev);
    if (err)
        return err;
    run->modelled = strcmp(mb_device_backend(run->dev), "sim") == 0;
    set_origin(run);
    err = mb_stream_create(run->dev, &run->stream);
    if (err)
        bench_run_close(run);
    return err;
}

void bench_run_close(struct bench_run *run)
{
    if (run->dev)
        mb_close(run->dev);
    run->dev = NULL;
    run->stream = NULL;
}

/* ------------------------------------------------------------ output */

static void print_number(double value)
{
    if (isnan(value))
        printf("%12s", "-");
    else
        printf("%12.5g", value);
}

static void print_x(const struct figure *f)
{
    char text[CLI_NUMBER_MAX];

    if (isnan(f->x))
        printf("%14s", "-");
    else if (strcmp(f->x_unit, "bytes") == 0)
        printf("%14s", cli_format_bytes((uint64_t)f->x, text));
    else
        printf("%8.6g %-5s", f->x, f->x_unit);
}

static void print_table(const struct bench_run *run)
{
    bool modelled = false;

    printf("%-30s%-26s%14s  %-18s%12s%12s%12s  %s\n", "what", "how", "at", "metric", "median",
           "p99", "p99.9", "unit");
    for (unsigned i = 0; i < run->set.count; i++) {
        const struct figure *f = &run->set.list[i];

        printf("%-30s%-26s", f->what, f->how);
        print_x(f);
        printf("  %-18s", f->metric);
        print_number(f->value);
        print_number(f->p99);
        print_number(f->p999);
        printf("  %s%s%s%s\n", f->unit, f->kind == FIGURE_MODELLED ? " «modelled»" : "",
               *f->note ? "  " : "", f->note);
        modelled |= f->kind == FIGURE_MODELLED;
    }
    if (modelled)
        puts("«modelled»: virtual time or behaviour of the software GPU, no evidence about "
             "hardware.");
}

static void print_json(struct bench_run *run)
{
    struct json_writer w = {.out = stdout};

    json_object(&w, NULL);
    json_text(&w, "bench", run->command->name);
    json_text(&w, "version", mb_version());
    json_text(&w, "commit", run->commit);
    json_text(&w, "command", run->line);
    json_u64(&w, "seed", run->seed);
    figures_json(&run->set, &w);
    json_end_object(&w);
    json_finish(&w);
}

int bench_run_end(struct bench_run *run, enum mb_err err)
{
    int code = CLI_OK;

    if (err)
        code = cli_fail(CLI_FAILED, run->command->name, "%s: %s", mb_error_name(err),
                        mb_error_detail());
    else if (run->set.failed)
        code = cli_fail(CLI_FAILED, run->command->name, "the host is out of memory");
    else if (run->as_json)
        print_json(run);
    else
        print_table(run);
    bench_run_close(run);
    figures_free(&run->set);
    return code;
}

/* ------------------------------------------------------------ samples */

uint64_t bench_random(struct bench_run *run, uint64_t limit)
{
    uint64_t z = run->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % limit;
}

double bench_uniform(struct bench_run *run)
{
    return (double)bench_random(run, (uint64_t)1 << 40) / (double)((uint64_t)1 << 40);
}

struct figure bench_figure(const struct bench_run *run, const char *experiment, const char *what,
                           const char *how, bool modelled)
{
    struct figure f = figure_blank();

    f.experiment = experiment;
    f.what = what;
    f.how = how;
    f.kind = modelled ? FIGURE_MODELLED : FIGURE_MEASURED;
    f.origin = run->origin;
    return f;
}

void bench_add(struct bench_run *run, const char *experiment, const char *what, const char *how,
               const char *metric, const char *unit, double x, const char *x_unit, double value,
               const char *note)
{
    struct figure f = bench_figure(run, experiment, what, how, run->modelled);

    f.metric = metric;
    f.unit = unit;
    f.x = x;
    f.x_unit = x_unit;
    f.value = value;
    f.note = note;
    figures_add(&run->set, &f);
}

double bench_table_bytes(const struct bench_run *run, uint64_t bytes, const char **note)
{
    bool seen = run->modelled || bytes;

    *note = seen ? "" : FIGURE_TABLES_UNSEEN;
    return seen ? (double)bytes : NAN;
}

void bench_add_times(struct bench_run *run, struct figure f, const struct histogram *h)
{
    f.unit = "us";
    f.samples = (unsigned)h->count;
    if (h->count)
        f.value = (double)histogram_percentile(h, 0.5) / 1e3;
    if (h->count >= 100)
        f.p99 = (double)histogram_percentile(h, 0.99) / 1e3;
    if (h->count >= 1000)
        f.p999 = (double)histogram_percentile(h, 0.999) / 1e3;
    figures_add(&run->set, &f);
}
