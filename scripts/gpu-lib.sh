# shellcheck shell=bash
# Sourced by the gpu-* scripts, in the project's directory.
#
# Sets `ready`, the absolute path of what scripts/gpu-prepare made, or nothing: then a script builds for itself; and
# `commit`, of the tree, also exported as COMMIT: GPU machines often have no git.

ready=${MB_GPU_READY-}
if [ -n "$ready" ]; then
    ready=$(cd "$ready" && pwd) || exit 1
    export MB_GPU_READY=$ready
fi
commit=${COMMIT-}
if [ -z "$commit" ] && [ -n "$ready" ]; then
    commit=$(cat "$ready/commit")
fi
if [ -z "$commit" ]; then
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
fi
export COMMIT=$commit

# gpu_name: of GPU 0, as file names have it.
gpu_name() {
    nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-'
}

# gpu_sources: one number for all that gpu-prepare compiles.
gpu_sources() {
    find CMakeLists.txt cmake include src kernels cli integrations tests bench -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' -o -name '*.map' -o -name '*.cmake' -o -name CMakeLists.txt \) |
        LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16
}
