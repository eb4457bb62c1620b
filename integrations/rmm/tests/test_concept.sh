#!/usr/bin/env bash
# The RMM resource without RMM, on the software GPU.
#
#     test_concept.sh LIBRARY-DIRECTORY ROOT
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
    -o "$work/concept" -L"$1" -lmoonbright -Wl,-rpath,"$1"
"$work/concept"
