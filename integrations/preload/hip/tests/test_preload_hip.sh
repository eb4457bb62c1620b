#!/usr/bin/env bash
# A program that knows HIP only, on the FAKE of HIP: alone, with MoonBright in front, and with MoonBright in front that is
# switched off or cannot open the device. Not run on AMD hardware.
set -euo pipefail

library=$1
program=$2
failed=0

if [ -n "${MB_SANITIZE-}" ]; then
    echo "SKIP: preload_hip: a sanitizer's library would have to be loaded before the preloaded one"
    exit 77
fi

# expect WHAT PATTERN COMMAND...: it succeeds, and its output holds PATTERN.
expect() {
    local what=$1 pattern=$2 out
    shift 2
    if out=$("$@" 2>&1) && grep -qE -- "$pattern" <<<"$out"; then
        echo "ok: $what"
    elif grep -q "no kernels for AMD GPUs" <<<"$out"; then
        echo "SKIP: preload_hip: this build has no kernels for AMD GPUs"
        exit 77
    else
        echo "FAILED: $what: expected «$pattern» in: $out"
        failed=1
    fi
}

expect "alone" "ok; HIP's own: hipMalloc [1-9][0-9]+ hipMallocAsync [1-9][0-9]* hipMemMap 0" "$program"
# The one hipMalloc is MoonBright's own, for its counters.
expect "MoonBright in front" "ok; HIP's own: hipMalloc 1 hipMallocAsync 0 hipMemMap [1-9]" \
    env LD_PRELOAD="$library" "$program"
expect "what an old runtime does" "ok; HIP's own: hipMalloc 1 hipMallocAsync 0 hipMemMap [1-9]" \
    env LD_PRELOAD="$library" FAKE_HIP_OLD=1 FAKE_HIP_WAIT_VALUES=0 "$program"
expect "switched off" "ok; HIP's own: hipMalloc [1-9][0-9]+ hipMallocAsync [1-9][0-9]* hipMemMap 0" \
    env LD_PRELOAD="$library" MOONBRIGHT_PRELOAD=off "$program"
expect "no virtual memory: HIP serves" "ok; HIP's own: hipMalloc [1-9][0-9]+ hipMallocAsync [1-9]" \
    env LD_PRELOAD="$library" FAKE_HIP_VMM=0 "$program"
expect "no virtual memory: it is told" "not run on AMD hardware.*stays with HIP.*virtual memory" \
    env LD_PRELOAD="$library" FAKE_HIP_VMM=0 "$program"
exit $failed
