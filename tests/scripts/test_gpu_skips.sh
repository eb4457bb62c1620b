#!/usr/bin/env bash
# Every command of doc/gpu-runs.md says what it lacks where there is no NVIDIA driver, and exits with 77.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

if [ -e /proc/driver/nvidia/version ]; then
    skip "this machine has an NVIDIA driver"
fi
cd "$MB_SOURCE_DIR" || exit 1
for name in gpu-test gpu-variants gpu-bench gpu-report gpu-torch gpu-train gpu-compat gpu-kv gpu-scale gpu-samples gpu-rmm gpu-probe; do
    arguments=()
    case $name in
    gpu-variants | gpu-bench | gpu-report | gpu-probe) arguments=("$MB_BUILD_DIR" "$scratch/results") ;;
    gpu-train) arguments=("$scratch/study.jsonl") ;;
    gpu-samples) arguments=("$scratch") ;;
    gpu-scale) arguments=("$scratch/scale") ;;
    esac
    expect 77 timeout 60 scripts/$name "${arguments[@]}"
    expect_text "SKIP: $name: "
done
expect 77 timeout 60 scripts/gpu-all --stage right "$scratch/all"
expect_text "SKIP: gpu-all: "
