#!/usr/bin/env bash
# The libraries' symbols: the shared one exports public names (mb_x) only; the static one, whose internal names
# are visible to the program that links it, defines nothing outside mb_ either.
set -euo pipefail

lib=$MB_BUILD_DIR/lib
command -v nm >/dev/null || { echo "SKIP: exports: nm (binutils) is missing"; exit 77; }
if [ -n "$MB_SANITIZE" ]; then
    echo "SKIP: exports: sanitizers add symbols of their own"
    exit 77
fi

shared=$(nm -D --defined-only "$lib/libmoonbright.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
static=$(nm --defined-only --extern-only "$lib/libmoonbright.a" | awk 'NF == 3 { print $3 }' | sort -u)
if wrong=$(grep -vE '^mb_[a-z][A-Za-z0-9_]*$' <<<"$shared" | grep .); then
    echo "exported by libmoonbright.so, but not public: $wrong"
    exit 1
fi
if wrong=$(grep -vE '^mb_' <<<"$static" | grep .); then
    echo "defined by libmoonbright.a without the prefix mb_: $wrong"
    exit 1
fi
grep -qx mb__cuda_fatbin <<<"$static" || { echo "nm shows no symbols of libmoonbright.a"; exit 1; }
soname=$(objdump -p "$lib/libmoonbright.so" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = libmoonbright.so.0 ] || { echo "SONAME is $soname, not libmoonbright.so.0"; exit 1; }
