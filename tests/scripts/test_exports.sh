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

# Opened late, a library must leave the loader's small reserve of thread-local memory alone: one initial-exec variable
# puts all of a library's there, and OpenMP's, which needs some, can then not be opened. The preload library may: it is
# loaded at the start, from memory of its own, and shows that readelf tells the flag.
command -v readelf >/dev/null || { echo "SKIP: exports: readelf (binutils) is missing"; exit 77; }
for file in "$lib"/*.so; do
    case ${file##*/} in
    libmoonbright_preload.so)
        readelf -d "$file" | grep -q STATIC_TLS || { echo "$file: readelf shows no STATIC_TLS"; exit 1; }
        ;;
    libmoonbright-hip.so) ;; # preloaded as well
    *) ! readelf -d "$file" | grep -q STATIC_TLS || { echo "$file: a variable is initial-exec"; exit 1; } ;;
    esac
done
