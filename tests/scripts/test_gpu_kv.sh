#!/usr/bin/env bash
# scripts/gpu-kv without a GPU: which caches it compares when nobody chooses, as its head says; and that «groups» runs one
# process for each layout, the paged cache beside the first. A stand-in for python writes down what it is asked for, in a
# mount namespace where the driver seems to be loaded.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
[ -e /proc/driver/nvidia/version ] && skip "this machine has a GPU: scripts/gpu-kv itself can be run"

mkdir -p "$scratch"/{scripts,bin,ready/lib,integrations/kv}
cp "$MB_SOURCE_DIR"/scripts/gpu-{kv,lib.sh} "$scratch/scripts/"
cd "$scratch" || exit
echo abc1234 >ready/commit
printf '#!/bin/sh\necho "$*" >>"%s"\n' "$scratch/asked" >bin/python
printf '#!/bin/sh\necho NVIDIA H200\n' >bin/nvidia-smi
printf '#!/bin/sh\n%s\nexec "$@"\n' \
    'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && : >/proc/driver/nvidia/version || exit 99' >bin/seem
chmod +x bin/*
unshare --mount bin/seem true 2>/dev/null || skip "no mount namespace can be made here"
seem=(env MB_GPU_READY=ready "PATH=$scratch/bin:$PATH" "PYTHON=$scratch/bin/python" "RESULTS=$scratch/kv.jsonl" OUT=
    unshare --mount bin/seem)

# asked LINE TEXT...: what process number LINE was asked for holds each TEXT.
asked() {
    local line text
    line=$(sed -n "$1p" asked)
    shift
    for text in "$@"; do
        [[ " $line " == *" $text "* ]] || fail "not asked for «$text»: $line"
    done
}

expect 0 "${seem[@]}" scripts/gpu-kv check
caches=$(sed -n 's/.*CACHES (\([a-z,-]*\);.*/\1/p' scripts/gpu-kv)
asked 1 "--caches $caches" "--experiments check"
[[ ",$caches," == *,moonbright-flashinfer,* ]] || fail "nothing stands beside paged-flashinfer with its kernels: $caches"

rm asked
expect 0 "${seem[@]}" scripts/gpu-kv groups
[ "$(wc -l <asked)" = 3 ] || fail "not one process for each layout: $(cat asked)"
asked 1 "--experiments layout:12,beam:6" "--caches moonbright-flashinfer,paged-flashinfer"
asked 2 "--experiments beam" "--caches moonbright-flashinfer" "--group-layers 8"
asked 3 "--experiments beam" "--caches moonbright-flashinfer" "--group-layers 1"
[[ $(sed -n 1p asked) != *--group-layers* ]] || fail "the first layout is the library's: $(sed -n 1p asked)"
echo "PASS: gpu_kv"
