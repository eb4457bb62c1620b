#!/usr/bin/env bash
# What `moonbright info` says when something of HIP's is missing: it names it. The libraries are FAKES.
set -euo pipefail

moonbright=$1
fake=$MB_BUILD_DIR/tests/fake-hip
failed=0

# expect WHAT TEXT COMMAND...: the hip backend's lines hold TEXT.
expect() {
    local what=$1 text=$2 out
    shift 2
    out=$("$@" "$moonbright" info | sed -n '/^hip/,/^$/p')
    if grep -qF -- "$text" <<<"$out"; then
        echo "ok: $what"
    else
        echo "FAILED: $what: expected «$text» in:"
        echo "$out"
        failed=1
    fi
}

if [[ $(LD_LIBRARY_PATH="$fake" "$moonbright" info) == *"this build has no kernels for AMD GPUs"* ]]; then
    echo "SKIP: hip_missing: this build has no kernels for AMD GPUs, so it says that before anything else"
    exit 77
fi

note="not run on AMD hardware"
expect "not a library" "no HIP runtime: none of libamdhip64.so.7" env LD_LIBRARY_PATH="$fake-broken"
expect "not a library, with the note" "$note" env LD_LIBRARY_PATH="$fake-broken"
expect "functions that are not there, by name" "hipMemCreate, hipMemRelease, hipMemMap, hipMemUnmap and 28 more" \
    env LD_LIBRARY_PATH="$fake-part"
expect "functions that are there are not named" "libamdhip64.so.6 lacks hipRuntimeGetVersion, hipGetErrorName, hipGetDevice, hipSetDevice" \
    env LD_LIBRARY_PATH="$fake-part"
expect "no device" "sees no device" env LD_LIBRARY_PATH="$fake" FAKE_HIP_DEVICES=0
expect "no virtual memory" "hipDeviceAttributeVirtualMemoryManagementSupported is 0" \
    env LD_LIBRARY_PATH="$fake" FAKE_HIP_VMM=0
expect "all there" "FAKE HIP device 0 (for tests)" env LD_LIBRARY_PATH="$fake"
expect "all there, with the note" "$note" env LD_LIBRARY_PATH="$fake"

# A granularity that does not fit is told at open.
if out=$(LD_LIBRARY_PATH="$fake" FAKE_HIP_GRANULARITY=$((4 << 20)) "$moonbright" demo --backend hip 2>&1); then
    echo "FAILED: a granularity of 4 MiB was taken"
    failed=1
elif ! grep -qF "pieces of 4194304 bytes" <<<"$out"; then
    echo "FAILED: expected the granularity in: $out"
    failed=1
fi
exit $failed
