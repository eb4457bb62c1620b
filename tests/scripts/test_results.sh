#!/usr/bin/env bash
# The counting that CI relies on: test.h tells cases, scripts/run-tests reads them, scripts/summary adds them up;
# a failure, a crash and a skip are each seen as what they are.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

# A project of its own, with a copy of the scripts, so that the results go there.
mkdir "$scratch/scripts" "$scratch/build"
cp "$MB_SOURCE_DIR"/scripts/{run-tests,summary} "$scratch/scripts"
cat >"$scratch/cases.c" <<'PROGRAM'
#include "test.h"

#include <stdlib.h>

static void *volatile leaked;

TEST(leaks)
{
    for (int i = 0; i < 50; i++)
        leaked = malloc(100);
    leaked = NULL;
}

TEST(plain_good)
{
    CHECK_EQ(1, 1);
}

TEST(plain_skips)
{
    SKIP("the reason of this skip");
}

TEST(same_skip_1)
{
    SKIP("no such device");
}

TEST(same_skip_2)
{
    SKIP("no such device");
}

TEST(plain_bad)
{
    CHECK_EQ(1, 2);
}

TEST(crashes)
{
    abort();
}
PROGRAM
support=$MB_BUILD_DIR/lib/libmoonbright_test_support.a
read -ra flags < <(pkg-config --cflags --libs cmocka)
sanitize=(${MB_SANITIZE:+"-fsanitize=$MB_SANITIZE"})
"$MB_CC" -g "${sanitize[@]}" -I "$MB_SOURCE_DIR/tests" "$scratch/cases.c" "$support" "${flags[@]}" \
    -o "$scratch/cases" || fail "does not compile"

if [[ $MB_SANITIZE == *address* ]]; then
    expect 1 "$scratch/cases" leaks
    expect_text "CASES: 1 passed, 0 failed, 0 skipped"
fi
MB_TEST_SEED=0x1f expect 0 "$scratch/cases" plain_good
expect_text "seed: 0x1f "
expect_text "CASES: 1 passed, 0 failed, 0 skipped"
expect 1 "$scratch/cases" plain_bad
expect 77 "$scratch/cases" plain_skips
expect_text "SKIP: plain_skips: the reason of this skip"
expect 77 "$scratch/cases" 'same_skip_*'
expect_text "SKIP: same_skip_1: no such device"
expect_text "CASES: 0 passed, 0 failed, 2 skipped"
[ "$(grep -c '^SKIP: ' <<<"$output")" -eq 1 ] || fail "one reason is told more than once: $output"
expect 1 "$scratch/cases" 'nothing*'
MB_TEST_SEED=tomorrow expect 1 "$scratch/cases" plain_good
expect_text "MB_TEST_SEED"

cat >"$scratch/CMakeLists.txt" <<PROJECT
cmake_minimum_required(VERSION 3.25)
project(cases NONE)
enable_testing()
foreach(case plain_good plain_bad plain_skips crashes same_skip_*)
    add_test(NAME \${case} COMMAND $scratch/cases \${case})
endforeach()
add_test(NAME three COMMAND $scratch/cases plain_*)
add_test(NAME other_good COMMAND true)
add_test(NAME other_bad COMMAND false)
add_test(NAME other_skip COMMAND sh -c "echo SKIP: other: no such device; exit 77")
add_test(NAME silent_skip COMMAND sh -c "exit 77")
add_test(NAME no_program COMMAND $scratch/missing)
set_tests_properties(plain_skips same_skip_* other_skip silent_skip PROPERTIES SKIP_RETURN_CODE 77)
PROJECT
cmake -S "$scratch" -B "$scratch/build" >/dev/null
run=("$scratch/scripts/run-tests" --tier mixed --build "$scratch/build")
expect 1 "${run[@]}" --name all:
tsv=$scratch/build/results/mixed.tsv
tab=$'\t'
while read -r status name reason; do
    grep -qxF "$status${tab}1${tab}all:$name${tab}$reason" "$tsv" || fail "no $status of $name in: $(cat "$tsv")"
done <<'LINES'
passed plain_good
failed plain_bad
skipped plain_skips plain_skips: the reason of this skip
failed crashes
passed other_good
failed other_bad
skipped other_skip other: no such device
failed silent_skip skipped without a reason
LINES
grep -q "^failed${tab}1${tab}all:no_program" "$tsv" || fail "a test without program did not fail: $(cat "$tsv")"

rm "$tsv"
expect 0 "${run[@]}" -- -R '^(other_good|other_skip)$'
expect 0 "$scratch/scripts/summary" "$tsv"
[ "${output##*$'\n'}" = "1 passed, 0 failed, 1 skipped" ] || fail "the sum is: $output"
expect_text "other_skip: other: no such device"

rm "$tsv"
expect 1 "${run[@]}" -- -R '^three$'
expect 1 "$scratch/scripts/summary" "$tsv" "$tsv"
[ "${output##*$'\n'}" = "2 passed, 2 failed, 2 skipped" ] || fail "the sum is: $output"

rm "$tsv"
expect 0 "${run[@]}" -- -R '^(other_good|other_skip|same_skip.*)$'
expect 0 "$scratch/scripts/summary" "$tsv"
expect_text "  no such device (3 cases): "
[ "$(grep -c 'no such device' <<<"$output")" -eq 1 ] || fail "one reason has several lines: $output"
rm "$tsv"
expect 0 "${run[@]}" -- -R '^(other_good|same_skip.*)$'
expect 0 "$scratch/scripts/summary" "$tsv"
expect_text "  same_skip_*: same_skip_1: no such device (2 cases)"

# Nothing run is not success.
: >"$tsv"
expect 1 "$scratch/scripts/summary" "$tsv"
