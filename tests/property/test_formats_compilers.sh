#!/usr/bin/env bash
# The format and pte_pop headers compile as OpenCL C, CUDA C++, HIP-like C++, C++ and strict C11, without warnings, and
# the 16-byte slots of GMMU become one 16-byte store on both kinds of device.
set -euo pipefail

root=${MB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
passed=0
skipped=0
failed=0

# check <what> <command>...: quiet success, or the output.
check() {
    local what=$1
    shift
    if "$@" >"$tmp/out" 2>&1 && [ ! -s "$tmp/out" ]; then
        passed=$((passed + 1))
    else
        echo "FAILED: $what"
        cat "$tmp/out"
        failed=$((failed + 1))
    fi
}

skip() {
    echo "SKIP: formats_compilers: $1"
    skipped=$((skipped + 1))
}

find_tool() {
    local name
    for name in "$@"; do
        command -v "$name" && return
    done
    return 1
}

cat >"$tmp/all.h" <<'END'
#include "kernels/pte_pop.h"
END
cat >"$tmp/use.c" <<'END'
#include "all.h"
int main(void)
{
    return mb_fmt_geometry(MB_FMT_GMMU_V3).va_bits == 57 ? 0 : 1;
}
END
cat >"$tmp/use.cl" <<'END'
#include "all.h"
__kernel void pop8(__global ulong *slots, __global const uint *pfns, ulong first, ulong tmpl)
{
    mb_pte_pop(MB_FMT_GFX9_TF, 21, slots, first, get_global_id(0), pfns, tmpl);
}
__kernel void pop16(__global ulong *slots, __global const uint *pfns, ulong first, ulong tmpl)
{
    mb_pte_pop(MB_FMT_GMMU_V3, 21, slots, first, get_global_id(0), pfns, tmpl);
}
__kernel void decode(__global ulong *out, ulong lo, ulong hi, uint level)
{
    struct mb_pte pte = {lo, hi};
    struct mb_leaf leaf;
    struct mb_dir dir;
    struct mb_fmt_geometry g = mb_fmt_geometry(MB_FMT_GFX9_TF);

    out[0] = mb_fmt_is_leaf(MB_FMT_GFX9_TF, level, pte);
    out[1] = mb_fmt_decode_leaf(MB_FMT_GFX9_TF, 21, pte, &leaf) ? leaf.phys : 0;
    out[2] = mb_fmt_decode_dir(MB_FMT_GFX9_TF, level, pte, &dir) ? dir.table_phys : g.va_bits;
}
END
cat >"$tmp/use.cu" <<'END'
#include "all.h"
__global__ void pop8(uint64_t *slots, const uint32_t *pfns, uint64_t first, uint64_t tmpl)
{
    mb_pte_pop(MB_FMT_GMMU_V3, 16, slots, first, threadIdx.x, pfns, tmpl);
}
__global__ void pop16(uint64_t *slots, const uint32_t *pfns, uint64_t first, uint64_t tmpl)
{
    mb_pte_pop(MB_FMT_GMMU_V3, 21, slots, first, threadIdx.x, pfns, tmpl);
}
__global__ void decode(uint64_t *out, struct mb_pte pte, unsigned level)
{
    struct mb_leaf leaf;
    struct mb_dir dir;
    struct mb_fmt_geometry g = mb_fmt_geometry(MB_FMT_GMMU_V3);

    out[0] = mb_fmt_is_leaf(MB_FMT_GMMU_V3, level, pte);
    out[1] = mb_fmt_decode_leaf(MB_FMT_GMMU_V3, 21, pte, &leaf) ? leaf.phys : 0;
    out[2] = mb_fmt_decode_dir(MB_FMT_GMMU_V3, level, pte, &dir) ? dir.table_phys : g.va_bits;
}
END

warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
check "strict C11" "${MB_CC:-cc}" -std=c11 "${warnings[@]}" -I"$root" -I"$tmp" -o "$tmp/use" "$tmp/use.c"
check "C11 program" "$tmp/use"
# A directory entry or a leaf must not depend on whether constants are folded.
check "C11, optimised" "${MB_CC:-cc}" -std=c11 -O2 "${warnings[@]}" -I"$root" -I"$tmp" -o "$tmp/use" "$tmp/use.c"

if cxx=$(find_tool g++ c++ clang++); then
    check "C++17" "$cxx" -x c++ -std=c++17 -Wall -Wextra -Werror -I"$root" -I"$tmp" -fsyntax-only "$tmp/use.c"
else
    skip "no C++ compiler"
fi

if clang=$(find_tool clang-14 clang) && [[ $("$clang" --print-targets 2>/dev/null) == *amdgcn* ]]; then
    opencl=("$clang" -x cl -cl-std=CL1.2 -target amdgcn-amd-amdhsa -mcpu=gfx90a -nogpulib -O2 -Wall -Wextra -Werror
        -I"$root" -I"$tmp")
    check "OpenCL C for gfx90a" "${opencl[@]}" -c -o "$tmp/use.amd.o" "$tmp/use.cl"
    check "OpenCL C 2.0" "${opencl[@]}" -cl-std=CL2.0 -c -o "$tmp/use.amd.o" "$tmp/use.cl"
    check "OpenCL C to assembly" "${opencl[@]}" -S -o "$tmp/use.s" "$tmp/use.cl"
    check "one 16-byte store on AMD" grep -q global_store_dwordx4 "$tmp/use.s"
    # HIP without its runtime: the attributes are all that the headers use.
    cat >"$tmp/use.hip" <<'END'
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
struct ulonglong2 { unsigned long long x, y; };
static __device__ inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return ulonglong2{x, y};
}
#include "all.h"
__global__ void pop16(uint64_t *slots, const uint32_t *pfns, uint64_t first, uint64_t tmpl)
{
    mb_pte_pop(MB_FMT_GMMU_V3, 21, slots, first, 0, pfns, tmpl);
}
END
    check "HIP for gfx90a" "$clang" -x hip -std=c++17 -nogpuinc -nogpulib --cuda-device-only --offload-arch=gfx90a \
        -D__HIPCC__ -O2 -Wall -Wextra -Werror -I"$root" -I"$tmp" -S -o "$tmp/use.hip.s" "$tmp/use.hip"
else
    skip "OpenCL C and HIP: no clang with the amdgcn target (Debian package clang)"
fi

nvcc=$(find_tool nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc") || nvcc=
if [ -n "$nvcc" ]; then
    check "CUDA C++" "$nvcc" -std=c++17 -arch=sm_90 -Werror all-warnings -I"$root" -I"$tmp" -c -o "$tmp/use.o" "$tmp/use.cu"
    check "CUDA C++ to PTX" "$nvcc" -std=c++17 -arch=sm_90 -I"$root" -I"$tmp" -ptx -o "$tmp/use.ptx" "$tmp/use.cu"
    check "one 16-byte store on NVIDIA" grep -q 'st\.global\.v2\.[ub]64' "$tmp/use.ptx"
else
    skip "CUDA: no nvcc; set CUDA_HOME or PATH"
fi

echo "formats_compilers: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] || exit 1
[ $skipped -eq 0 ] || [ $passed -gt 3 ] || exit 77
