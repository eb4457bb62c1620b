#!/usr/bin/env bash
# The RMM resource behind RMM's own types, of a version with concepts and of one with a base class, on the software GPU.
# The wheels are fetched into DIRECTORY once (MB_RMM_OFFLINE=1: never).
#
#     test_slow_rmm.sh LIBRARY-DIRECTORY ROOT DIRECTORY
set -uo pipefail
library=$1 root=$2 dir=$3
cxx=${CXX:-c++}
skip() {
    echo "SKIP: test_slow_rmm: $1"
    exit 77
}
[ -z "${MB_SANITIZE-}" ] || skip "the library has a sanitizer in it that RMM has not"
type -P "$cxx" >/dev/null || skip "no C++ compiler"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(readlink -f "$nvcc")")/../include
[ -e "$cuda/cuda_runtime_api.h" ] || skip "no CUDA toolkit, whose headers RMM includes"

# fetch NAME PACKAGE...: the wheels, unpacked, without their dependencies.
fetch() {
    local to=$dir/$1
    shift
    [ -e "$to/done" ] && return
    [ -z "${MB_RMM_OFFLINE-}" ] || return
    mkdir -p "$to"
    timeout 120 python3 -m pip download -q --no-deps -d "$to" "$@" >"$to/log" 2>&1 || return
    for wheel in "$to"/*.whl; do python3 -m zipfile -e "$wheel" "$to" || return; done
    touch "$to/done"
}
fetch concept librmm-cu13==26.10.* rapids-logger==0.3.* || skip "RMM's wheel could not be fetched: $(tail -1 "$dir/concept/log")"
fetch base librmm-cu12==25.4.* rapids-logger==0.1.* || skip "the old wheel could not be fetched: $(tail -1 "$dir/base/log")"

failed=0
# try NAME SOURCE OPTION...
try() {
    local in=$dir/$1 source=$root/integrations/rmm/tests/$2
    shift 2
    "$cxx" -std=c++17 -w -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -I"$root/include" -I"$in/librmm/include" \
        -I"$in/librmm/include/rapids/libcudacxx" -I"$in/librmm/include/rapids" -I"$in/rapids_logger/include" -I"$cuda" \
        "$source" -o "$in/program" -L"$library" -lmoonbright -Wl,-rpath,"$library" "$@" && "$in/program" && return
    echo "FAIL $source"
    failed=1
}
new=$dir/concept
try concept with_rmm.cpp "$new/librmm/lib64/librmm.so" "$new/rapids_logger/lib64/librapids_logger.so" \
    -Wl,-rpath,"$new/librmm/lib64:$new/rapids_logger/lib64"
try base with_rmm_base.cpp
# What a GPU machine gets, up to where it would open the GPU.
skips() {
    "$root/scripts/gpu-rmm" --build "$new" "$library" "$new/gpu" || return
    LD_LIBRARY_PATH=$library "$new/gpu/on_gpu" backend:cuda
    [ $? = 77 ]
}
if [ ! -e /proc/driver/nvidia/version ] && ! skips; then
    echo "FAIL on_gpu.cpp"
    failed=1
fi
exit $failed
