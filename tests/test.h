/*
 * The tests' thin layer over cmocka: cases that register themselves, a seed, skips with a reason.
 *
 *     TEST(reserve_is_aligned)
 *     {
 *         CHECK_EQ(va % MB_PAGE_BYTES, 0);
 *     }
 *
 * One file is one program; main is in tests/support/test_main.c. Cases run in the file's order.
 * A failed check ends its case. Checks may only be made on the thread that runs the case: on
 * another thread a failed check ends the program, with failure; cmocka cannot unwind that thread.
 *
 * Program arguments: an optional name pattern (* and ?) of the cases to run.
 * Exit status: 0 all passed or some skipped, 1 a failure, 77 every case was skipped.
 */
#ifndef MB_TESTS_TEST_H
#define MB_TESTS_TEST_H

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A registered case. Owner: the test program, static storage; only written before main. */
struct mb_test_case {
    const char *name;
    void (*run)(void **state); /* signature that cmocka calls */
    struct mb_test_case *next; /* in order of registration */
};

void mb_test_register(struct mb_test_case *test_case);

/* Prints «SKIP: <case>: <reason>», unless a case before had the same reason, and ends the case. Use
 * SKIP. */
_Noreturn void mb_test_skip(const char *case_name, const char *reason);

/*
 * The seed of this run, the same for every case: MB_TEST_SEED if set (decimal or 0x hex), else
 * random. It is printed when the program starts.
 */
uint64_t mb_test_seed(void);

/*
 * The next number of a sequence (splitmix64) whose state is *state; begin with mb_test_seed(),
 * plus a constant of the case if its sequence shall be its own.
 */
uint64_t mb_test_random(uint64_t *state);

/* A number in [0, bound), bound > 0; the bias is below bound / 2^64. */
uint64_t mb_test_random_below(uint64_t *state, uint64_t bound);

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    static void test_run_##name(void **state)                                                      \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name();                                                                             \
    }                                                                                              \
    static struct mb_test_case test_case_##name = {#name, test_run_##name, NULL};                  \
    __attribute__((constructor)) static void test_register_##name(void)                            \
    {                                                                                              \
        mb_test_register(&test_case_##name);                                                       \
    }                                                                                              \
    static void test_##name(void)

/* Ends the running case as skipped. The program exits with 77 if nothing but skips remains. */
#define SKIP(reason) mb_test_skip(NULL, (reason))

/* Each evaluates its arguments once. CHECK_EQ: integers of any type, also enum mb_err. */
#ifdef __clang_analyzer__
/* A static analyzer does not know that a failed check of cmocka's does not return. */
#define CHECK(condition) ((condition) ? (void)0 : __builtin_unreachable())
#define CHECK_EQ(actual, expected) CHECK((actual) == (expected))
#define CHECK_NE(actual, unwanted) CHECK((actual) != (unwanted))
#define CHECK_OK(call) CHECK((call) == 0)
#else
#define CHECK(condition) assert_true(condition)
#define CHECK_EQ(actual, expected) assert_int_equal((actual), (expected))
#define CHECK_NE(actual, unwanted) assert_int_not_equal((actual), (unwanted))
#define CHECK_OK(call) assert_int_equal((call), 0)
#endif
#define CHECK_LE(actual, limit) assert_true((actual) <= (limit))
#define CHECK_PTR_EQ(actual, expected) assert_ptr_equal((actual), (expected))
#define CHECK_STR_EQ(actual, expected) assert_string_equal((actual), (expected))
#define CHECK_MEM_EQ(actual, expected, bytes) assert_memory_equal((actual), (expected), (bytes))
#define FAIL(...) fail_msg(__VA_ARGS__)

#endif
