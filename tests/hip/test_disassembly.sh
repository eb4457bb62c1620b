#!/usr/bin/env bash
# Machine code of pte_pop for AMD GPUs: every entry is one global store of 8 bytes, no kernel needs anything that the
# launch does not give, and nothing is spilled.
set -euo pipefail

dir=$MB_BUILD_DIR/amdgpu
failed=0
checked=0

# The newest disassembler: an old one does not know new GPUs.
objdump="" readelf=""
for version in -22 -21 -20 -19 -18 -17 -16 -15 -14 ""; do
    if command -v "llvm-objdump$version" >/dev/null && command -v "llvm-readelf$version" >/dev/null; then
        objdump=llvm-objdump$version
        readelf=llvm-readelf$version
        break
    fi
done
if [ -z "$objdump" ]; then
    echo "SKIP: hip_disassembly: llvm-objdump and llvm-readelf are not installed"
    exit 77
fi
if ! compgen -G "$dir/gfx*.co" >/dev/null; then
    echo "SKIP: hip_disassembly: this build has no code for AMD GPUs, no clang with lld could compile it"
    exit 77
fi

fail() {
    echo "FAILED: $1"
    failed=1
}

# body KERNEL: its instructions in $listing
body() {
    awk -v name="<$1>:" '
        $0 ~ /^[0-9a-f]+ <.*>:$/ { inside = index($0, name) > 0; next }
        inside { print }
        inside && /s_endpgm/ { inside = 0 }' <<<"$listing"
}

for file in "$dir"/gfx*.co; do
    target=$(basename "$file" .co)
    listing=$("$objdump" -d --no-show-raw-insn "$file" 2>/dev/null || true)
    if ! grep -q "<mb_fill>:" <<<"$listing"; then
        echo "SKIP: hip_disassembly: $objdump does not know $target"
        continue
    fi
    for kernel in mb_pop_gfx9_tf_2m mb_pop_gfx9_tf_4k mb_pop_gfx9_2m mb_pop_gfx9_4k mb_pop_same mb_fill mb_copy; do
        code=$(body "$kernel")
        stores=$(grep -c "global_store_dwordx2" <<<"$code" || true)
        others=$(grep -cE "(flat|scratch|buffer)_(store|atomic)|global_store_(byte|short|dword)[^x]" <<<"$code" || true)
        [ "$stores" -ge 1 ] || fail "$target $kernel: no global store of 8 bytes"
        [ "$others" -eq 0 ] || fail "$target $kernel: $others other stores"
        grep -q "s_endpgm" <<<"$code" || fail "$target $kernel: no end"
        checked=$((checked + 1))
    done
    grep -qE "global_(atomic_add_x2|atomic_add_u64)" <<<"$(body mb_verify)" ||
        fail "$target mb_verify: no atomic add"
    notes=$("$readelf" --notes "$file")
    grep -q "hidden_" <<<"$notes" && fail "$target: a kernel wants hidden arguments"
    grep -E "spill_count: *[1-9]|private_segment_fixed_size: *[1-9]" <<<"$notes" && fail "$target: registers are spilled"
    grep -q "amdgcn-amd-amdhsa--$target" <<<"$notes" || fail "$target: the code is for another GPU"
done
if [ $checked -eq 0 ]; then
    exit 77
fi
echo "$checked kernels checked with $objdump; the code was not run on AMD hardware"
exit $failed
