#!/usr/bin/env bash
# The demo works from the build directory, from an installation, and says what it needs when its data is away.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

run 0 demo --backend sim
says out "PyTorch, default (recorded)          21.90 GiB   34.22 GiB      64.0%"
says out "PyTorch, expandable segments         21.90 GiB   22.95 GiB      95.3%"
says out "MoonBright on sim (this run)         21.88 GiB"
says out "0 wrong."
says out "software GPU"
says err "gpt2.csv.gz"
if grep -qF ".." "$WORK/err"; then fail "the path is not plain: $(head -1 "$WORK/err")"; fi

mkdir -p "$WORK/empty"
export MOONBRIGHT_DATA=$WORK/empty
run 1 demo --backend sim
says err "set MOONBRIGHT_DATA"
export MOONBRIGHT_DATA=$SOURCE/data
run 0 demo --backend sim --seed 5
unset MOONBRIGHT_DATA

# Installed under any prefix, it finds its own.
if cmake --install "${MB_BUILD_DIR:-$(dirname "$MOONBRIGHT")/..}" --prefix "$WORK/prefix" >"$WORK/install" 2>&1; then
    # shellcheck disable=SC2034 # lib.sh uses it
    MOONBRIGHT=$WORK/prefix/bin/moonbright
    run 0 demo --backend sim
    says err "prefix"
else
    fail "installing failed: $(tail -3 "$WORK/install")"
fi
finish
