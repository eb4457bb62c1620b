#!/usr/bin/env bash
# The contract bites: with one safety step taken out of the software GPU, the rule that is about it fails; with all of
# them in, it passes. Needs the program of the contract suite.
set -euo pipefail

program=${MB_BUILD_DIR:?set it to the build directory}/tests/test_contract_sim
[ -x "$program" ] || { echo "SKIP: contract_mutants: $program is not built"; exit 77; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failed=0
passed=0

# catches <mutant bit> <what it leaves out> <rule>
catches() {
    if ! MB_CONTRACT_MUTANTS=0 "$program" "$3" >"$out" 2>&1; then
        echo "FAILED: $3 does not pass with every step in"
        cat "$out"
        failed=$((failed + 1))
    elif MB_CONTRACT_MUTANTS=$1 "$program" "$3" >"$out" 2>&1; then
        echo "FAILED: $3 passes though $2 is left out"
        grep '^seed' "$out"
        failed=$((failed + 1))
    elif ! grep -q "^CASES: 0 passed, 1 failed" "$out"; then
        echo "FAILED: $3 ended without a verdict when $2 is left out"
        cat "$out"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}

catches 1 "the invalidate" a_remap_shows_the_new_frame
catches 1 "the invalidate" random_programs_agree_with_a_model
catches 8 "the membar" old_accesses_land_before_a_membar_ends
catches 32 "waiting for fences" a_wait_orders_streams
catches 32 "waiting for fences" streams_that_wait_for_each_other_go_on
catches 64 "the barrier" scattered_frames_map
catches 64 "the barrier" batches_keep_their_order

echo "contract_mutants: $passed passed, $failed failed"
[ $failed -eq 0 ]
