/* SPDX-License-Identifier: MIT */
/*
 * On the software GPU the probe recovers exactly the parameters of the model, without having been
 * told them, and the built-in profile of the model says the same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/profile.h"
#include "hw/sim/dev.h"
#include "probe/lab.h"
#include "test.h"

struct facts {
    double value[MB_PROFILE_FACTS];
    enum mb_fact_verdict verdict[MB_PROFILE_FACTS];
    unsigned count;
};

static void on_fact(void *user, const struct mb_fact *fact)
{
    struct facts *f = user;

    CHECK(f->count < MB_PROFILE_FACTS);
    CHECK_STR_EQ(fact->name, mb__profile_name((enum mb_profile_fact)f->count));
    f->value[f->count] = fact->value;
    f->verdict[f->count++] = fact->verdict;
}

static struct facts measure(const char *config, const char *path)
{
    struct facts f = {.count = 0};

    CHECK_OK(mb_probe_run(0, config, path, mb_test_seed(), on_fact, &f));
    CHECK_EQ(f.count, MB_PROFILE_FACTS);
    return f;
}

static void check_fact(const struct facts *f, enum mb_profile_fact fact, uint64_t expected)
{
    if ((uint64_t)llround(f->value[fact]) != expected)
        FAIL("%s is %g; the model has %llu", mb__profile_name(fact), f->value[fact],
             (unsigned long long)expected);
}

static void check_model(const struct facts *f, const struct sim_model *m)
{
    uint64_t empty = m->launch_ns + m->start_ns + m->kernel_ns;
    uint64_t mib = (uint64_t)1 << 20;
    uint64_t tmpl = mb_fmt_leaf_template(m->fmt, MB_FRAME_SHIFT, mb_fmt_user_flags(m->fmt, 1),
                                         MB_AP_VID, m->kind);

    check_fact(f, MB_PROFILE_group_slots, m->group_slots);
    check_fact(f, MB_PROFILE_invalid_group_slots, m->caches_invalid ? m->group_slots : 1);
    check_fact(f, MB_PROFILE_walk_ahead_slots, 0);
    check_fact(f, MB_PROFILE_entry_low, (uint32_t)tmpl);
    check_fact(f, MB_PROFILE_entry_high, tmpl >> 32);
    check_fact(f, MB_PROFILE_launch_ns, m->launch_ns);
    check_fact(f, MB_PROFILE_kernel_ns, empty);
    check_fact(f, MB_PROFILE_submit_ns, m->submit_ns);
    check_fact(f, MB_PROFILE_entry_ps, m->entry_ps);
    check_fact(f, MB_PROFILE_invalidate_ns, m->invalidate_ns + m->membar_ns);
    check_fact(f, MB_PROFILE_invalidate_range_ns, m->invalidate_ns + m->membar_ns);
    check_fact(f, MB_PROFILE_first_touch_ns, m->walk_ns);
    check_fact(f, MB_PROFILE_stream_value_ns, 2 * m->sem_ns);
    check_fact(f, MB_PROFILE_slab_2m_ns, mb__sim_cost_at(m->slab, 2 * mib));
    check_fact(f, MB_PROFILE_slab_32m_ns, mb__sim_cost_at(m->slab, 32 * mib));
    check_fact(f, MB_PROFILE_slab_128m_ns, mb__sim_cost_at(m->slab, 128 * mib));
    check_fact(f, MB_PROFILE_slab_512m_ns, mb__sim_cost_at(m->slab, 512 * mib));
    check_fact(f, MB_PROFILE_slab_1g_ns, mb__sim_cost_at(m->slab, 1024 * mib));
}

TEST(the_probe_recovers_the_model)
{
    for (unsigned i = 0; i < mb__sim_model_count; i++) {
        struct facts f;
        char config[64];

        snprintf(config, sizeof(config), "backend:sim,model:%s", mb__sim_models[i].name);
        printf("%s\n", config);
        f = measure(config, NULL);
        check_model(&f, &mb__sim_models[i]);
    }
}

TEST(the_built_in_profile_is_the_model)
{
    struct facts f = measure("backend:sim", NULL);

    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        if (f.verdict[i] != MB_FACT_AS_KNOWN && i != MB_PROFILE_small_alloc_leaf_kib)
            FAIL("%s: %g is not as built in", mb__profile_name((enum mb_profile_fact)i),
                 f.value[i]);
}

/* A device that walks ahead is noticed by name. */
TEST(a_fact_that_differs_is_told)
{
    struct facts f = measure("backend:sim,walk_ahead:1", NULL);

    CHECK_EQ(f.verdict[MB_PROFILE_walk_ahead_slots], MB_FACT_DIFFERS);
    CHECK_EQ(f.verdict[MB_PROFILE_group_slots], MB_FACT_AS_KNOWN);
}

/* Without invalid entries that fact cannot be had, and is not made up. */
TEST(what_cannot_be_measured_is_said)
{
    struct facts f = measure("backend:sim,driver_home:1", NULL);

    CHECK_EQ(f.verdict[MB_PROFILE_invalid_group_slots], MB_FACT_NOT_MEASURED);
    CHECK(isnan(f.value[MB_PROFILE_invalid_group_slots]));
}

TEST(a_written_profile_is_read_and_used)
{
    char path[] = "probe-profile-XXXXXX", config[96];
    int fd = mkstemp(path);
    struct mb_profile p;
    struct facts f;
    mb_device dev;

    CHECK(fd >= 0);
    close(fd);
    f = measure("backend:sim", path);
    CHECK_OK(mb__profile_read(path, &p));
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        CHECK(p.value[i] == f.value[i] || (isnan(p.value[i]) && isnan(f.value[i])));
    snprintf(config, sizeof(config), "backend:sim,profile:%s", path);
    CHECK_OK(mb_open(0, config, &dev));
    mb_close(dev);
    /* It is of the H200's model, and of no other device. */
    snprintf(config, sizeof(config), "backend:sim,model:a100,profile:%s", path);
    CHECK_EQ(mb_open(0, config, &dev), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "simulated A100") != NULL);
    unlink(path);
    CHECK_EQ(mb_open(0, config, &dev), MB_ERR_IO);
}
