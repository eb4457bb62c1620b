/* SPDX-License-Identifier: MIT */
/*
 * Every litmus program gives the model's answer on the software GPU, and another one when the rule
 * that it asks about is switched off. A program that cannot tell the two apart asks nothing.
 */
#include <stdio.h>
#include <string.h>

#include "probe/litmus.h"
#include "test.h"

static struct mb_litmus_result ask(const struct mb_hw_config *config,
                                   const struct mb_litmus_case *c, unsigned off)
{
    struct mb_litmus_result result;
    struct mb_lab lab;

    CHECK_OK(mb__litmus_open("sim", config, mb_test_seed(), c, off, &lab));
    mb__litmus_judge(&lab, c, &result);
    mb__lab_close(&lab);
    return result;
}

static void check_all(const struct mb_hw_config *config, bool primed)
{
    for (unsigned i = 0; i < mb__litmus_case_count; i++) {
        const struct mb_litmus_case *c = &mb__litmus_cases[i];
        struct mb_litmus_result result = ask(config, c, 0);

        printf("%s: %s\n", c->info.name, result.answer);
        if (primed && c->needs_invalid)
            CHECK_EQ(result.verdict, MB_LITMUS_NOT_RUN);
        else
            CHECK_EQ(result.verdict, MB_LITMUS_CONFIRMED);
    }
}

TEST(the_model_confirms_every_rule)
{
    struct mb_hw_config h200 = {0}, isolated = {.tables = "isolated"}, a100 = {.model = "a100"};

    check_all(&h200, false);
    check_all(&isolated, false);
    check_all(&a100, false);
}

TEST(a_primed_window_confirms_what_it_can)
{
    struct mb_hw_config primed = {.driver_home = true};

    check_all(&primed, true);
}

TEST(a_rule_switched_off_changes_its_answer)
{
    struct mb_hw_config config = {0};
    unsigned switches = 0;

    for (unsigned i = 0; i < mb__litmus_case_count; i++) {
        const struct mb_litmus_case *c = &mb__litmus_cases[i];
        struct mb_litmus_result result;

        if (!c->off_mutants && !c->off_walk_ahead)
            continue;
        switches++;
        result = ask(&config, c, c->off_mutants ? c->off_mutants : 1);
        printf("%s without %s: %s\n", c->info.name, c->info.rule, result.answer);
        CHECK_EQ(result.verdict, MB_LITMUS_CHANGED);
    }
    /* clean-group, l1-around and l1-fence ask for freshness, which no switch takes away. */
    CHECK_EQ(switches, mb__litmus_case_count - 3);
}

/* Another GPU changes the answers of exactly the rules that it does not share. */
TEST(another_gpu_names_the_rules_that_differ)
{
    static const char *const differ[] = {"stale-valid", "stale-invalid", "copy-stale",
                                         "copy-invalid"};
    struct mb_hw_config config = {.model = "mi210"};
    unsigned changed = 0;

    for (unsigned i = 0; i < mb__litmus_case_count; i++) {
        const struct mb_litmus_case *c = &mb__litmus_cases[i];
        struct mb_litmus_result result = ask(&config, c, 0);
        bool expected = false;

        for (unsigned d = 0; d < sizeof(differ) / sizeof(differ[0]); d++)
            expected |= !strcmp(differ[d], c->info.name);
        if (result.verdict != (expected ? MB_LITMUS_CHANGED : MB_LITMUS_CONFIRMED))
            FAIL("%s answers \"%s\"", c->info.name, result.answer);
        changed += result.verdict == MB_LITMUS_CHANGED;
    }
    CHECK_EQ(changed, sizeof(differ) / sizeof(differ[0]));
}

TEST(programs_have_names_rules_and_answers)
{
    for (unsigned i = 0; i < mb__litmus_case_count; i++) {
        const struct mb_litmus_info *info = &mb__litmus_cases[i].info;

        CHECK(*info->name && *info->question && *info->rule && *info->expected);
        CHECK_PTR_EQ(mb__litmus_find(info->name), &mb__litmus_cases[i]);
    }
    CHECK_PTR_EQ(mb__litmus_find("no-such-program"), NULL);
}

TEST(the_public_functions_agree)
{
    struct mb_litmus_info list[64];
    struct mb_litmus_result result;
    unsigned count = 0;

    CHECK_OK(mb_litmus_list(list, 64, &count));
    CHECK_EQ(count, mb__litmus_case_count);
    CHECK_OK(mb_litmus_run(0, "backend:sim", "stale-valid", 1, &result));
    CHECK_EQ(result.verdict, MB_LITMUS_CONFIRMED);
    CHECK_STR_EQ(result.answer, "stale to distance 15");
    CHECK_EQ(mb_litmus_run(0, "backend:sim", "nothing", 1, &result), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_litmus_run(0, "backend:sim", NULL, 1, &result), MB_ERR_INVALID);
    CHECK_EQ(mb_litmus_run(0, "backend:none", "stale-valid", 1, &result), MB_ERR_CONFIG);
}
