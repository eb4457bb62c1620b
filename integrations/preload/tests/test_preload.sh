#!/usr/bin/env bash
# The CUDA preload in front of programs, on a fake of libcuda.
#
#     test_preload.sh LIBRARY PROGRAM
set -uo pipefail

library=${1:?usage: test_preload.sh LIBRARY PROGRAM}
program=${2:?usage: test_preload.sh LIBRARY PROGRAM}
if [ -n "${MB_SANITIZE-}" ]; then
    echo "SKIP: test_preload: a sanitizer must be loaded before everything else, and so must a preload library"
    exit 77
fi
unset MOONBRIGHT MOONBRIGHT_PRELOAD MOONBRIGHT_PRELOAD_TIMES
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 passed=0

# ok NAME COMMAND...: must succeed; the output stays in $work/out.
ok() {
    local name=$1
    shift
    if timeout 600 "$@" >"$work/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: status $?"
        tail -5 "$work/out" | sed 's/^/     /'
    fi
}
# run WAY CASE [VARIABLE=VALUE...]
run() {
    ok "$1 $2" env LD_PRELOAD="$library" MOONBRIGHT=tables:driver "${@:3}" "$program" "$1" "$2"
}
# says TEXT: the last output must hold it. silent: there must be none.
says() {
    grep -qF -- "$1" "$work/out" && return
    failed=$((failed + 1))
    echo "FAIL: «$1» was not said, but:"
    head -5 "$work/out" | sed 's/^/     /'
}
silent() {
    [ ! -s "$work/out" ] && return
    failed=$((failed + 1))
    echo "FAIL $1: not silent:"
    head -5 "$work/out" | sed 's/^/     /'
}

if ! LD_PRELOAD=$library MOONBRIGHT=tables:driver "$program" direct names >"$work/out" 2>&1; then
    cat "$work/out"
    exit 1
fi
if [[ $(LD_PRELOAD=$library MOONBRIGHT=tables:driver "$program" direct pitch 2>&1) == *"no CUDA kernels"* ]]; then
    echo "SKIP: test_preload: this build has no CUDA kernels, without which the cuda backend does not open"
    exit 77
fi

# Every case by symbols, and what differs between the ways by each of the others.
for case in names blocks many pitch async capture home info foreign pools pools_reset pools_shared reset forks contexts broken; do
    run direct "$case"
done
for way in dlsym default proc proc_v1; do
    for case in blocks async home pools; do run "$way" "$case"; done
done
run proc stitched FAKE_CUDA_MEMORY=$((160 << 20))
says "composed of scattered frames"
run proc peers FAKE_CUDA_DEVICES=2
says "MoonBright's and mapped for that device only"
run proc ipc MOONBRIGHT_PRELOAD=ipc FAKE_CUDA_DEVICES=2
run direct off MOONBRIGHT_PRELOAD=off FAKE_CUDA_DEVICES=2
run direct hand_shake
run direct hand_shake MOONBRIGHT="tables:driver, window_cache:0"
if timeout 5 env LD_PRELOAD="$library" MOONBRIGHT=tables:driver,growth:tight "$program" direct hand_shake >"$work/out" 2>&1; then
    failed=$((failed + 1))
    echo "FAIL: growth:tight in \$MOONBRIGHT has no effect"
fi
run direct sim MOONBRIGHT=backend:sim
run proc sim MOONBRIGHT=backend:sim
run direct fork_opening MOONBRIGHT="backend:sim,registry:$work/locked" LOCKED="$work/locked"
run direct home
says "set MOONBRIGHT_PRELOAD=ipc"

# A device that MoonBright cannot open stays with the driver, and one line says so.
ok "unknown key" env LD_PRELOAD="$library" MOONBRIGHT=nonsense:1 MOONBRIGHT_PRELOAD=time "$program" direct vendor
says "stays with CUDA: MB_ERR_CONFIG"
run direct blocks MOONBRIGHT_PRELOAD=tarce,time
says "\"tarce\" is no word of it"

# Times: for MoonBright's calls and for the driver's.
run direct blocks MOONBRIGHT_PRELOAD=time MOONBRIGHT_PRELOAD_TIMES="$work/times"
run direct off MOONBRIGHT_PRELOAD=off,time MOONBRIGHT_PRELOAD_TIMES="$work/times" FAKE_CUDA_DEVICES=2
if ! python3 - "$work/times" <<'PYTHON'; then
import json, sys
ours, vendor = [json.loads(line) for line in open(sys.argv[1])]
assert ours["by"] == "moonbright" and vendor["by"] == "vendor", (ours, vendor)
assert ours["waited_for_open_ns"] >= ours["open_ns"] > 0 == vendor["waited_for_open_ns"]
assert ours["alloc"]["calls"] > 100 and ours["alloc"]["total_ns"] > ours["alloc"]["max_ns"] > 0
assert vendor["alloc"]["calls"] == 1 and vendor["free_async"]["calls"] == 1 and vendor["open_ns"] == 0
PYTHON
    failed=$((failed + 1))
    echo "FAIL times: $(cat "$work/times")"
fi

run direct blocks MOONBRIGHT_PRELOAD=time MOONBRIGHT_PRELOAD_TIMES="$work/none/times"
says "could not be written to $work/none/times: No such file"

# Nothing of CUDA's is needed, and nothing happens where there is none.
if readelf -d "$library" | grep NEEDED | grep -i cuda; then
    failed=$((failed + 1))
    echo "FAIL: the library needs something of CUDA's"
fi
true=$(type -P true)
export LD_PRELOAD=$library
for how in "" time trace off; do
    ok "true" env MOONBRIGHT_PRELOAD=$how "$true"
    silent "true with MOONBRIGHT_PRELOAD=$how"
done
# shellcheck disable=SC2016  # $0 is for the inner shell
ok "children" bash -c '(ls / | wc -l >/dev/null) && exec env -i "$0"' "$true"
silent children
ok "python" python3 -c 'import ctypes; ctypes.CDLL(None).getpid()'
silent python
unset LD_PRELOAD
ok "cleared" env -i LD_PRELOAD="$library" "$true"
silent cleared
# A program that runs with another user's rights gets no preload library from a path, and no message.
if [ "$(id -u)" = 0 ] && id nobody >/dev/null 2>&1 && cp "$true" "$work/setuid" &&
    chown nobody "$work/setuid" && chmod 4755 "$work" "$work/setuid"; then
    ok setuid env LD_PRELOAD="$library" "$work/setuid"
    if grep -q "moonbright" "$work/out"; then
        failed=$((failed + 1))
        echo "FAIL setuid: something of MoonBright's ran"
    fi
else
    echo "note: setuid was not tried: that needs root"
fi

echo "test_preload: $passed passed, $failed failed"
[ $failed = 0 ]
