#!/usr/bin/env bash
# scripts/check-deps accepts the allowed directions and catches every forbidden one.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

check=$MB_SOURCE_DIR/scripts/check-deps
tree=$scratch/tree

# file PATH [INCLUDED]: a source file that includes one other.
file() {
    mkdir -p "$tree/${1%/*}"
    printf '%s\n' "${2:+#include \"$2\"}" >"$tree/$1"
}

fresh_tree() {
    rm -rf "$tree"
    file include/moonbright.h
    file kernels/formats.h
    file src/base/list.h moonbright.h
    file src/hw/hw.h kernels/formats.h
    file src/hw/sim/sim.h hw/hw.h
    file src/hw/nvrm/rm.h hw/hw.h
    file src/hw/cuda/cuda.h hw/nvrm/rm.h
    file src/hw/hip/hip.h hw/hw.h
    file src/vm/vm.h hw/hw.h
    file src/runtime/cache.h vm/vm.h
    file src/api/api.c runtime/cache.h
    file cli/trace.h
    file cli/main.c moonbright.h
    file integrations/preload/preload.c moonbright.h
    file integrations/torch/torch.cpp moonbright.h
    file tests/unit/test_vm.c vm/vm.h
}

fresh_tree
expect 0 "$check" "$tree"
expect_text "0 violations"

# Including file, what it includes.
while read -r from to; do
    fresh_tree
    file "$from" "$to"
    expect 1 "$check" "$tree"
    expect_text "$from:1: "
    expect_text "1 violations"
done <<'CASES'
src/base/list.c hw/hw.h
src/base/list.c ../vm/vm.h
src/hw/hw.c vm/vm.h
src/hw/hw.c sim/sim.h
src/hw/sim/a.c hw/cuda/cuda.h
src/hw/sim/a.c hw/nvrm/rm.h
src/hw/cuda/a.c hw/sim/sim.h
src/hw/cuda/a.c ../hip/hip.h
src/hw/hip/a.c hw/cuda/cuda.h
src/hw/hip/a.c hw/nvrm/rm.h
src/hw/nvrm/a.c hw/cuda/cuda.h
src/vm/a.c runtime/cache.h
src/vm/a.c hw/sim/sim.h
src/runtime/a.c hw/cuda/cuda.h
src/runtime/a.c tests/unit/test_vm.c
kernels/cuda/a.cu src/base/list.h
kernels/body.h vm/vm.h
include/extra.h base/list.h
cli/a.c base/list.h
cli/a.c kernels/formats.h
cli/a.c src/api/api.c
integrations/preload/a.c vm/vm.h
integrations/preload/a.c cli/trace.h
integrations/torch/a.cpp integrations/preload/preload.c
examples/a.c base/list.h
CASES

# The indented and bracketed forms count too.
fresh_tree
printf '\n  #  include <vm/vm.h>\n' >"$tree/src/base/a.c"
expect 1 "$check" "$tree"
expect_text "src/base/a.c:2: "

# A layer that the script does not know is not silently accepted.
fresh_tree
file src/other/a.c
expect 1 "$check" "$tree"
expect_text "in no known layer"

fresh_tree
seq 800 | sed 's|.*|//|' >"$tree/src/vm/long.c"
expect 0 "$check" "$tree"
echo >>"$tree/src/vm/long.c"
expect 1 "$check" "$tree"
expect_text "src/vm/long.c: 801 lines"

mkdir "$scratch/empty"
expect 2 "$check" "$scratch/empty"
