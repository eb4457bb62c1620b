/* main of every C test. See tests/test.h. */
#include "test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    EXIT_SKIPPED = 77,
};

/*
 * All of this is written by the main thread only; registration runs in constructors, before main.
 */
static struct mb_test_case *first_case;
static struct mb_test_case **last_link = &first_case;
static const char *running_case; /* valid while a case runs */
static size_t run_count;         /* cases started; less than registered when a pattern is given */
static size_t skip_count;        /* cases that ended in SKIP */
static char *skip_reasons[64];   /* those told, so that each is told once; never freed */
static uint64_t seed;            /* valid from the start of main */

void mb_test_register(struct mb_test_case *test_case)
{
    *last_link = test_case;
    last_link = &test_case->next;
}

uint64_t mb_test_seed(void)
{
    return seed;
}

uint64_t mb_test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t mb_test_random_below(uint64_t *state, uint64_t bound)
{
    return mb_test_random(state) % bound;
}

/* False if another case has told it. Beyond the list's room all are new. */
static bool new_reason(const char *reason)
{
    size_t count = sizeof(skip_reasons) / sizeof(skip_reasons[0]);

    for (size_t i = 0; i < count; i++) {
        if (!skip_reasons[i]) {
            skip_reasons[i] = strdup(reason);
            return true;
        }
        if (!strcmp(skip_reasons[i], reason))
            return false;
    }
    return true;
}

_Noreturn void mb_test_skip(const char *case_name, const char *reason)
{
    skip_count++;
    if (new_reason(reason))
        printf("SKIP: %s: %s\n", case_name ? case_name : running_case, reason);
    fflush(stdout);
    skip();
    abort(); /* skip() leaves by longjmp */
}

/* Runs in cmocka's set-up step, which gets the case as its state; the case itself ignores it. */
static int begin_case(void **state)
{
    const struct mb_test_case *test_case = *state;

    running_case = test_case->name;
    run_count++;
    return 0;
}

/* False if MB_TEST_SEED is set to something that is not a number. */
static int choose_seed(void)
{
    const char *text = getenv("MB_TEST_SEED");
    char *end;

    if (!text || !*text)
        return getrandom(&seed, sizeof(seed), 0) == (ssize_t)sizeof(seed);
    errno = 0;
    seed = strtoull(text, &end, 0);
    return !errno && !*end;
}

/* cmocka's list of the registered cases, at least one; the caller frees it. NULL: no memory. */
static struct CMUnitTest *collect(size_t *count_out)
{
    struct CMUnitTest *tests;
    size_t count = 0;

    for (struct mb_test_case *it = first_case; it; it = it->next)
        count++;
    tests = calloc(count, sizeof(*tests));
    if (!tests)
        return NULL;
    *count_out = count;
    count = 0;
    for (struct mb_test_case *it = first_case; it; it = it->next) {
        tests[count].name = it->name;
        tests[count].test_func = it->run;
        tests[count].setup_func = begin_case;
        tests[count].initial_state = it;
        count++;
    }
    return tests;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    struct CMUnitTest *tests;
    size_t count;
    size_t failed;

    if (!first_case) {
        fprintf(stderr, "%s: has no cases\n", argv[0]);
        return 1;
    }
    if (!choose_seed()) {
        fprintf(stderr, "MB_TEST_SEED: want a decimal or 0x number; unset it for a random seed\n");
        return 1;
    }
    tests = collect(&count);
    if (!tests) {
        fprintf(stderr, "%s: no memory for the list of cases\n", argv[0]);
        return 1;
    }
    printf("seed: 0x%" PRIx64 " (repeat with MB_TEST_SEED=0x%" PRIx64 ")\n", seed, seed);
    fflush(stdout);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    /* The function behind cmocka_run_group_tests, a macro that wants a compile-time array. */
    failed = (size_t)_cmocka_run_group_tests(slash ? slash + 1 : argv[0], tests, count, NULL, NULL);
    free(tests);
    if (!run_count) {
        fprintf(stderr, "%s: no case has a name like %s\n", argv[0], argc > 1 ? argv[1] : "*");
        return 1;
    }
    printf("CASES: %zu passed, %zu failed, %zu skipped\n", run_count - failed - skip_count, failed,
           skip_count);
    fflush(stdout); /* the leak check at exit may end the program without doing so */
    if (failed)
        return 1;
    return skip_count == run_count ? EXIT_SKIPPED : 0;
}
