#!/usr/bin/env bash
# bench map & co, litmus and probe as a user types them, on the software GPU.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

for bench in map unmap remap alias protect alloc beside; do
    sized=(--sizes "2MiB,64MiB" --samples 3)
    [ "$bench" != beside ] || sized=()
    run 0 bench "$bench" --backend sim "${sized[@]}" --json
    json 'r["rows"] and r["command"] and r["device"] and r["backend"] == "sim"'
    json 'all(row["samples"] or row["note"] for row in r["rows"])'
done
run 0 bench map --backend sim --sizes 2MiB,64MiB --samples 3 --json --commit abc
json 'r["commit"] == "abc"'
json '{"api, one range", "api, page by page", "simulated"} <= {row["how"] for row in r["rows"]}'
json 'all(row["modelled"] for row in r["rows"])'
run 0 bench map --backend sim --sizes 2MiB --samples 3
says out "«modelled»"
says out "CUDA VMM, one handle"
# Of a GPU that cannot be opened the reason, and no heading above nothing.
if ! ldconfig -p | grep -q libcuda.so.1; then
    run 1 bench map --backend cuda --sizes 2MiB
    says err "MB_ERR_NO_DEVICE"
    [ ! -s "$WORK/out" ] || fail "a heading without rows: $(cat "$WORK/out")"
fi
run 2 bench map --sizes 3KiB
says err "multiples of 2MiB"
run 2 bench map too many words
run 0 bench host --sizes 2MiB,64MiB --samples 3 --json --commit abc
json 'r["commit"] == "abc" and not any(row["modelled"] for row in r["rows"])'
json '{"map", "remap", "alias", "protect", "unmap", "sleep", "wake", "malloc", "free"} == {row["what"] for row in r["rows"]}'
json 'all(row["value"] > 0 and row["samples"] == 3 for row in r["rows"])'
run 1 bench host --config backend:hip --sizes 2MiB
says err "runs on sim"
run 0 bench hot --backend sim --threads 2 --milliseconds 5 --json
json 'all(row["value"] > 0 for row in r["rows"])'
run 0 bench hot --backend sim --threads 1 --live 4 --milliseconds 5
run 2 bench hot --threads 0

run 0 litmus --list
says out "stale-valid"
run 0 litmus --backend sim --json
json 'r["changed"] == 0 and r["not_run"] == 0 and r["confirmed"] == len(r["programs"])'
run 0 litmus --backend sim stale-valid membar
says out "2 confirmed, 0 changed, 0 not run"
run 0 litmus --backend sim
says out "l1-noncoherent-unfenced  confirmed  old"
says out "walk-ahead               confirmed "
run 0 probe --backend sim -o "$WORK/sim.profile"
says out " 0x681 bits"
run 1 litmus --backend sim --config model:mi210 stale-valid
says out "rule T1 says: stale to distance 15"
# A wrong configuration is bad input; a device that cannot be had has confirmed nothing.
run 2 litmus --config nosuch
says err "no ':'"
run 1 litmus --backend sim --device 4096 stale-valid
says out "failed"
says err "nothing is confirmed"
# Where nothing can be asked, nothing is confirmed.
run 1 litmus --backend hip walk-ahead
says out "not run"
says err "nothing is confirmed"
run 2 probe --backend sim --config nosuch
# Said before the measurements, not behind them.
run 1 probe --backend sim -o "$WORK/none/profile"
says err "cannot be written"
[ ! -s "$WORK/out" ] || fail "a probe without a place for its profile was run"
run 2 bench hot --backend sim --config nosuch
run 2 bench map --backend sim --config nosuch
run 2 litmus --backend sim stale-vali
says err "did you mean stale-valid"

run 0 probe --backend sim -o "$WORK/profile" --json
json 'r["differ"] == 0 and len(r["facts"]) > 10'
run 0 probe --backend sim --config walk_ahead:1
says out "1 facts differ"
run 0 bench alloc --backend sim --config "profile:$WORK/profile" --sizes 2MiB --samples 2
run 2 probe now
finish
