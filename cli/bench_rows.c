/* SPDX-License-Identifier: MIT */
#include "bench_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BACKENDS_MAX = 16 };

void rows_command_line(int argc, char **argv, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "moonbright bench");

    for (int i = 0; i < argc && used < size; i++) {
        int n = snprintf(buffer + used, size - used, " %s", argv[i]);

        used += n > 0 ? (size_t)n : 0;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

struct mb_spread rows_spread(double *us, unsigned count)
{
    qsort(us, count, sizeof(*us), by_value);
    return (struct mb_spread){us[count / 2], us[(unsigned)ceil(0.99 * count) - 1], us[0]};
}

/* The backend that will serve, as far as it can be told without opening it. */
static struct mb_backend_info backend_of(const char *config)
{
    struct mb_backend_info list[BACKENDS_MAX], none = {.name = "unknown"};
    unsigned count = 0;

    if (mb_backends(list, BACKENDS_MAX, &count))
        return none;
    for (unsigned i = 0; i < count && i < BACKENDS_MAX; i++) {
        char key[64];

        snprintf(key, sizeof(key), "backend:%s", list[i].name);
        if (strstr(config, key) || (!strstr(config, "backend:") && list[i].chosen))
            return list[i];
    }
    return none;
}

void rows_begin(struct rows *rows, unsigned device, const char *config, const char *command_line,
                uint64_t seed)
{
    struct mb_backend_info info = backend_of(config);
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    rows->json.out = stdout;
    if (!rows->as_json && !info.available)
        return; /* opening it will say why */
    if (!rows->as_json) {
        printf("%s on device %u, %s (%s); times in microseconds\n", command_line, device,
               info.device_name, info.driver);
        printf("%-15s%-36s%10s%8s%10s%10s%10s%10s%10s%10s\n", "what", "how", "size", "samples",
               "host", "p99", "complete", "p99", "used", "p99");
        return;
    }
    json_object(&rows->json, NULL);
    json_text(&rows->json, "bench", rows->command);
    json_text(&rows->json, "version", mb_version());
    json_text(&rows->json, "commit", rows->commit);
    json_text(&rows->json, "command", command_line);
    json_text(&rows->json, "time", when);
    json_text(&rows->json, "backend", info.name);
    json_text(&rows->json, "device", info.device_name);
    json_text(&rows->json, "driver", info.driver);
    json_u64(&rows->json, "seed", seed);
    json_array(&rows->json, "rows");
}

static void json_spread(struct json_writer *w, const char *key, const struct mb_spread *s)
{
    if (isnan(s->median_us))
        return;
    json_object(w, key);
    json_double(w, "median", s->median_us);
    if (!isnan(s->p99_us))
        json_double(w, "p99", s->p99_us);
    if (!isnan(s->min_us))
        json_double(w, "min", s->min_us);
    json_end_object(w);
}

static void add_json(struct json_writer *w, const struct mb_bench_row *row)
{
    json_object(w, NULL);
    json_text(w, "what", row->what);
    json_text(w, "how", row->how);
    json_u64(w, "bytes", row->bytes);
    json_u64(w, "samples", row->samples);
    json_bool(w, "modelled", row->modelled);
    json_spread(w, "host_us", &row->host);
    json_spread(w, "complete_us", &row->complete);
    json_spread(w, "used_us", &row->used);
    if (!isnan(row->value))
        json_double(w, "value", row->value);
    if (*row->note)
        json_text(w, "note", row->note);
    json_end_object(w);
}

static void print_spread(const struct mb_spread *s)
{
    const double value[2] = {s->median_us, s->p99_us};

    for (unsigned i = 0; i < 2; i++) {
        if (isnan(value[i]))
            printf("%10s", "-");
        else
            printf("%10.*f", value[i] < 10 ? 2 : 1, value[i]);
    }
}

void rows_add(struct rows *rows, const struct mb_bench_row *row)
{
    char size[CLI_NUMBER_MAX];

    rows->modelled |= row->modelled;
    rows->count++;
    if (rows->as_json) {
        add_json(&rows->json, row);
        return;
    }
    printf("%-15s%-36s%10s%8u", row->what, row->how,
           row->bytes ? cli_format_bytes(row->bytes, size) : "-", row->samples);
    print_spread(&row->host);
    print_spread(&row->complete);
    print_spread(&row->used);
    if (!isnan(row->value))
        printf("  %.4g", row->value);
    if (*row->note)
        printf("  (%s)", row->note);
    putchar('\n');
    fflush(stdout);
}

void rows_end(struct rows *rows)
{
    if (rows->as_json) {
        json_end_array(&rows->json);
        json_end_object(&rows->json);
        json_finish(&rows->json);
    } else if (rows->modelled) {
        puts("All times are «modelled»: virtual time of the software GPU.");
    }
}
