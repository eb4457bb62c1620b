#!/usr/bin/env bash
# What NVIDIA's own CUDA runtime, static and shared, gets when it looks up the driver's functions with the preload in
# front: ours, for every one that we answer. The driver is a fake.
#
#     test_preload_cudart.sh LIBRARY FAKE-DIRECTORY SOURCE COMPILER
set -uo pipefail

library=$1 fake=$2 source=$3 compiler=$4
if [ -n "${MB_SANITIZE-}" ]; then
    echo "SKIP: test_preload_cudart: a sanitizer must be loaded before everything else"
    exit 77
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
lib=$(dirname "$(readlink -f "$nvcc")")/../lib64
if [ ! -e "$lib/libcudart_static.a" ]; then
    echo "SKIP: test_preload_cudart: no CUDA toolkit here (libcudart_static.a)"
    exit 77
fi
unset MOONBRIGHT MOONBRIGHT_PRELOAD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$compiler" "$source" -o "$work/static" "$lib/libcudart_static.a" -ldl -lpthread -lrt || exit 1
"$compiler" "$source" -o "$work/shared" "$lib/libcudart.so" -Wl,-rpath,"$lib" || exit 1
# An older runtime as well, where one is named: a file libcudart.so.12.
if [ -e "${MB_CUDART12-}" ]; then
    "$compiler" "$source" -o "$work/shared12" "$MB_CUDART12" -Wl,-rpath,"$(dirname "$MB_CUDART12")" || exit 1
fi

names="cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemFree_v2 cuMemAllocAsync cuMemAllocAsync_ptsz cuMemFreeAsync
    cuMemFreeAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemPoolCreate cuMemPoolDestroy
    cuMemPoolTrimTo cuMemPoolSetAttribute cuMemPoolGetAttribute cuMemPoolExportToShareableHandle
    cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemGetInfo_v2 cuMemGetAddressRange_v2
    cuPointerGetAttribute cuPointerGetAttributes cuIpcGetMemHandle cuDevicePrimaryCtxReset cuStreamDestroy_v2
    cuDeviceCanAccessPeer cuCtxEnablePeerAccess cuGetProcAddress cuGetProcAddress_v2"
failed=0
for program in "$work"/static "$work"/shared "$work"/shared12; do
    [ -x "$program" ] || continue
    LD_LIBRARY_PATH=$fake LD_PRELOAD=$library MOONBRIGHT_PRELOAD=trace timeout 600 "$program" >"$work/out" 2>&1 || {
        echo "FAIL $(basename "$program"): status $?"
        failed=1
    }
    for name in $names; do
        grep -q ": $name\$" "$work/out" && continue
        echo "FAIL $(basename "$program"): the runtime did not get our $name"
        failed=1
    done
    echo "$(basename "$program"): $(grep -c 'cuGetProcAddress: ' "$work/out") functions by cuGetProcAddress," \
        "$(grep -c 'dlsym: ' "$work/out") by dlsym; $(tail -1 "$work/out")"
done
exit $failed
