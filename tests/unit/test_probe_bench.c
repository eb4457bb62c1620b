/* SPDX-License-Identifier: MIT */
/* Benches run on the software GPU: every line is there, and the model's figures come out. */
#include <math.h>
#include <string.h>

#include "moonbright.h"
#include "test.h"

struct rows {
    unsigned count, vendor, skipped;
    double host, complete; /* of MoonBright's row named `what` */
    const char *what;
};

static void on_row(void *user, const struct mb_bench_row *row)
{
    struct rows *r = user;

    CHECK(row->modelled);
    CHECK(row->samples || *row->note);
    r->count++;
    r->vendor += strncmp(row->how, "cuMem", 5) == 0 || strncmp(row->how, "CUDA", 4) == 0;
    r->skipped += row->samples == 0;
    if (isnan(r->host) && strcmp(row->what, r->what) == 0 && strcmp(row->how, "simulated") == 0) {
        r->host = row->host.median_us;
        r->complete = row->complete.median_us;
    }
}

static struct rows run(const char *name, const char *what, uint64_t bytes)
{
    struct rows r = {.host = NAN, .complete = NAN, .what = what};
    struct mb_bench_options options = {
        .name = name, .sizes = &bytes, .size_count = 1, .samples = 3, .seed = mb_test_seed()};

    CHECK_OK(mb_bench_run(0, "backend:sim", &options, on_row, &r));
    return r;
}

TEST(the_models_figures_come_out)
{
    struct rows r = run("map", "map", (uint64_t)2 << 30);

    CHECK_EQ(llround(r.host * 1000), 3600);
    /* submit, start, kernel, pop and 1024 entries of 0.7 ns, rounded down */
    CHECK_EQ(llround(r.complete * 1000), 3600 + 1400 + 3700 + 1000 + 400 + 716);
    CHECK_EQ(r.vendor, 5);
    CHECK_EQ(r.skipped, 2); /* both kinds of the vendor's pool */
    r = run("map", "map+invalidate", (uint64_t)2 << 20);
    CHECK_EQ(llround(r.complete * 1000), 3600 + 1400 + 3700 + 1000 + 400 + 2500 + 500);
}

TEST(every_bench_has_its_lines)
{
    static const char *const names[] = {"unmap", "remap", "alias", "protect"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct rows r = run(names[i], names[i], (uint64_t)64 << 20);

        CHECK(r.count >= 3 && r.vendor >= 2);
        CHECK(r.complete > r.host);
    }
    CHECK_EQ(run("alloc", "alloc", (uint64_t)64 << 20).vendor, 10);
    CHECK_EQ(run("beside", "beside map", (uint64_t)64 << 20).skipped, 2);
}

TEST(mistakes_are_refused)
{
    uint64_t odd = 4096;
    struct rows r = {.what = ""};
    struct mb_bench_options options = {.name = "fly"};

    CHECK_EQ(mb_bench_run(0, "backend:sim", &options, on_row, &r), MB_ERR_INVALID);
    options = (struct mb_bench_options){.name = "map", .sizes = &odd, .size_count = 1};
    CHECK_EQ(mb_bench_run(0, "backend:sim", &options, on_row, &r), MB_ERR_INVALID);
    CHECK_EQ(mb_bench_run(0, "backend:sim", NULL, on_row, &r), MB_ERR_INVALID);
    CHECK_EQ(mb_bench_run(0, "backend:sim", &options, NULL, &r), MB_ERR_INVALID);
    CHECK_EQ(r.count, 0);
}
