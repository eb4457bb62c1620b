#!/usr/bin/env bash
# An option either acts or is refused: no bench, replay or map takes one that it does not heed.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# refused TEXT ARGUMENT...: status 2, before anything is measured.
refused() {
    local text=$1
    shift
    run 2 "$@" && says err "$text"
    [ ! -s "$WORK/out" ] || fail "moonbright $* printed something"
}

# Where the device comes from.
refused "--device is 8; the backend sim has 8 devices here" bench all --backend sim --device 8 --json -
run 0 bench all --backend sim --device 3 --quick --quiet --only map,budget,scale --json "$WORK/all.json"
says err "scale: not possible here: it takes devices from 0 on"
grep -qF -- "--device 3" "$WORK/all.json" || fail "bench all --device 3: its benches were not told"
run 0 bench frag "$TORCH/llama-recompute.csv.gz" --policies moonbright --device 2
run 1 bench frag "$TORCH/llama-recompute.csv.gz" --policies moonbright --device 8
run 0 replay "$TORCH/llama-recompute.csv.gz" --backend sim --device 2 --events 100 --quiet
run 1 replay "$TORCH/llama-recompute.csv.gz" --backend sim --device 8 --events 100 --quiet
says err "device 8 asked; the software GPU has 0 to 7"

# What a bench does not do.
for bench in map unmap remap alias protect alloc host; do
    refused "there is no option --pending" bench $bench --backend sim --pending 3
done
for option in sizes samples seed; do
    refused "there is no option --$option" bench beside --backend sim --$option 4
done
refused "there is no option --no-vendor" bench host --no-vendor
for bench in calls wrap latency driver; do
    refused "there is no option --seed" bench $bench --seed 3
done
refused "of cuda's driver only" bench driver --backend sim
refused "and none is opened here" bench driver --config tables:driver
refused "and none is opened here" bench driver --device-memory 1GiB
refused "have no meaning for models" bench frag "$TORCH/gpt2.csv.gz" --policies torch-caching --backend sim
for option in --only=map --quick --device=1; do
    refused "has no meaning with --no-run" bench all --no-run --json - $option
done
run 0 bench churn --backend sim --quick --rate 5 --json
json 'max(f.get("x", 0) for f in r["figures"]) == 4'

# Without a device, without a draw, without devices in the file.
for option in --backend=sim --device=1 --config=policy:fresh --model=a100 --seed=3; do
    refused "has no meaning for the model" replay "$TORCH/gpt2.csv.gz" --policy torch-caching $option
done
run 0 replay "$TORCH/llama-recompute.csv.gz" --policy torch-caching --streams 2 --seed 3 --events 100
refused "--trace-device is for snapshots" replay "$TORCH/gpt2.csv.gz" --backend sim --trace-device 0
snapshot=$CORPUS/trace_snapshot/good_protocol_4
refused "is a SNAPSHOT, drawn as it was recorded" map "$snapshot" -o "$WORK/page.html" --config policy:fresh
run 0 replay "$TORCH/llama-recompute.csv.gz" --backend sim --events 100 --quiet --config "audit:$WORK/log"
refused "is a LOG, drawn as it was recorded" map "$WORK/log" -o "$WORK/page.html" --device-memory 1GiB
refused "--list takes no other word" litmus --list --json
refused "--list takes no other word" litmus --list --backend sim

finish
