#!/usr/bin/env bash
# The table that scripts/results makes of a file of scripts/gpu-samples: what is published beside the driver and MoonBright.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

mkdir -p "$scratch/scripts" "$scratch/doc" "$scratch/bench/results"
cp "$MB_SOURCE_DIR/scripts/results" "$scratch/scripts"
cp "$MB_SOURCE_DIR/tests/data/samples.jsonl" "$scratch/bench/results/h200-samples.jsonl"
expect 0 "$scratch/scripts/results"
output=$(cat "$scratch/doc/results.md")
expect_text "gpu NVIDIA H200, driver 580.159.04, commit 0123456"
expect_text "2 of the 1,013 published programs; of 4 that ran, 3 are right. Not run for want of time: nbody. Fail on the driver, too: simpleGL."
expect_text "| less time in allocation calls, mean | 76.5% | – | – | 82.5% | – |"
expect_text "| the most | 99.3% | – | – | 90.0% | – |"
expect_text "| the least | – | – | – | 75.0% | – |"
# Without the program that is wrong.
expect_text "| time in allocation calls, all of these programs, us | – | 600 | 120 | 80.0% | 5.00 |"
expect_text "| scan | no | 9 | 900 | 1 | 99.9% | 910,000 |"
expect_text "| deviceQuery | yes | – | – | – | – | – |"
expect_text "| simpleGL | fails on the driver | – | – | – | – | – |"

# Rows alone, as of a run that was ended, are told as they are.
head -3 "$MB_SOURCE_DIR/tests/data/samples.jsonl" >"$scratch/bench/results/h200-samples.jsonl"
expect 1 "$scratch/scripts/results"
expect_text "h200-samples.jsonl: rows of samples without their summary"
# Nor is a run added to one that was cut off before it.
cat "$MB_SOURCE_DIR/tests/data/samples.jsonl" >>"$scratch/bench/results/h200-samples.jsonl"
expect 1 "$scratch/scripts/results"
expect_text "h200-samples.jsonl: rows of samples without their summary"
echo "PASS: samples_page"
