/* SPDX-License-Identifier: MIT */
/*
 * The allocator against a naive one, on random programs with several streams. A failing program is
 * shrunk and printed with its seed.
 */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

enum {
    OPS = 800,
    PROGRAMS = 12, /* per configuration */
    BUDGET = 300,  /* runs spent on shrinking */
};

struct context {
    const char *config;
    uint64_t capacity;
    char text[MODEL_TEXT];
};

static bool still_fails(void *arg, const struct model_op *ops, size_t count)
{
    struct context *context = arg;
    char text[MODEL_TEXT] = "";

    return !model_run(context->config, context->capacity, ops, count, text);
}

static void run_programs(const char *config, uint64_t capacity, uint64_t salt)
{
    static struct model_op ops[OPS];

    for (unsigned i = 0; i < PROGRAMS; i++) {
        uint64_t seed = mb_test_seed() + salt * 1000 + i;
        struct context context = {config, capacity, ""};
        size_t left;

        model_generate(seed, ops, OPS, capacity);
        if (model_run(config, capacity, ops, OPS, context.text))
            continue;
        printf("program of seed 0x%" PRIx64 " on %s: %s\nshrinking\n", seed, config, context.text);
        left = model_shrink(ops, OPS, still_fails, &context, BUDGET);
        context.text[0] = 0;
        model_run(config, capacity, ops, left, context.text);
        printf("%zu operations are left: %s\n", left, context.text);
        model_print(ops, left);
        FAIL("the allocator and the naive one differ");
    }
    printf("COUNT random programs of the allocator against a naive one %d\n", PROGRAMS);
}

TEST(roomy_device)
{
    run_programs("backend:sim,device_memory:2g,seed:1,explore:yes", (uint64_t)2 << 30, 1);
}

TEST(tight_device)
{
    run_programs("backend:sim,device_memory:256m,seed:2,explore:yes", (uint64_t)256 << 20, 2);
}

TEST(tight_device_fresh_addresses)
{
    run_programs("backend:sim,device_memory:256m,seed:3,explore:yes,policy:fresh",
                 (uint64_t)256 << 20, 3);
}

TEST(tight_device_patient)
{
    run_programs("backend:sim,device_memory:256m,seed:4,explore:yes,growth:patient",
                 (uint64_t)256 << 20, 4);
}

TEST(homes_mapped_by_the_driver)
{
    run_programs("backend:sim,device_memory:256m,seed:5,explore:yes,driver_home:yes",
                 (uint64_t)256 << 20, 5);
}

TEST(amd_model)
{
    run_programs("backend:sim,device_memory:256m,seed:6,explore:yes,model:mi210",
                 (uint64_t)256 << 20, 6);
}

TEST(without_bins)
{
    run_programs("backend:sim,device_memory:256m,seed:7,explore:yes,cache:no", (uint64_t)256 << 20,
                 7);
}

TEST(growth_fast)
{
    run_programs("backend:sim,device_memory:256m,seed:8,explore:yes,growth:fast",
                 (uint64_t)256 << 20, 8);
}

TEST(walks_run_ahead)
{
    run_programs("backend:sim,device_memory:256m,seed:9,explore:yes,walk_ahead:yes",
                 (uint64_t)256 << 20, 9);
}

/* The shrinker itself: a program fails if it holds a trim after an order; two operations must be
 * left. */
static bool order_then_trim(void *arg, const struct model_op *ops, size_t count)
{
    bool order = false;

    ++*(unsigned *)arg;
    for (size_t i = 0; i < count; i++) {
        order |= ops[i].kind == MODEL_ORDER;
        if (order && ops[i].kind == MODEL_TRIM)
            return true;
    }
    return false;
}

TEST(shrinker_finds_the_smallest_program)
{
    static struct model_op ops[OPS];
    unsigned runs = 0;
    size_t left;

    model_generate(42, ops, OPS, (uint64_t)1 << 30);
    CHECK(order_then_trim(&runs, ops, OPS));
    left = model_shrink(ops, OPS, order_then_trim, &runs, 10000);
    CHECK_EQ(left, 2);
    CHECK_EQ(ops[0].kind, MODEL_ORDER);
    CHECK_EQ(ops[1].kind, MODEL_TRIM);
}
