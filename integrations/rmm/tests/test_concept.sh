#!/usr/bin/env bash
# The RMM resource without RMM, on the software GPU, and with driver tables on a stand-in for libcuda.
#
#     test_concept.sh LIBRARY-DIRECTORY ROOT BUILD
set -euo pipefail
cxx=${CXX:-c++}
if [ -n "${MB_SANITIZE-}" ]; then
    echo "SKIP: test_rmm_concept: the library has a sanitizer in it that this C++ compiler need not have"
    exit 77
fi
if ! type -P "$cxx" >/dev/null; then
    echo "SKIP: test_rmm_concept: no C++ compiler"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -isystem "$2/include" "$2/integrations/rmm/tests/concept.cpp" \
    -o "$work/concept" -L"$1" -lmoonbright -ldl -Wl,-rpath,"$1"
"$work/concept"
rehearse() {
    local status=0
    "$2/scripts/gpu-rehearse" "$3" "${@:4}" || status=$?
    [ $status = 0 ] || [ $status = 77 ]
}
rehearse "$@" "$work/concept" driver
rehearse "$@" "$work/concept" streams
rehearse "$@" python3 -B "$2/integrations/rmm/tests/callback.py" "$1/libmoonbright.so"
