#!/usr/bin/env bash
# All five traces under many seeds, one stream and four: never a wrong access or a failed request, and memory within
# the bounds that doc/traces.md states. Without a seed two runs count the same of everything.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

random=$((RANDOM + 9))
echo "the random seed is $random"
for streams in 0 4; do
    for seed in none none 1 2 3 4 $random; do
        seeding=()
        [ "$seed" = none ] || seeding=(--seed "$seed")
        run 0 replay "$TORCH"/*.csv.gz --backend sim --verify --json --streams $streams "${seeding[@]}"
        json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["ok"]'
        sed "s/^/$seed\t/" "$WORK/out" >>"$WORK/runs$streams"
    done
done

cat >"$WORK/judge.py" <<'PYTHON'
import json, os, sys

STEP = 32 << 20  # by which the library grows
TIMES = ("ops_per_second", "ops_per_second_in_calls", "wall_seconds", "malloc", "free")
faults, traces = [], {}
for line in open(sys.argv[1], encoding="utf-8"):
    seed, text = line.split("\t", 1)
    run = json.loads(text)
    traces.setdefault(run["trace"], []).append((seed, run))
spread_over_streams = sys.argv[2] != "0"
if len(traces) != 5:
    faults.append(f"{len(traces)} traces, expected 5")
for path, runs in sorted(traces.items()):
    name = os.path.basename(path).split(".")[0]
    plain = [run for seed, run in runs if seed == "none"]
    seeded = [run for seed, run in runs if seed != "none"]
    if len(plain) != 2 or len(seeded) < 5:
        faults.append(f"{name}: {len(plain)} runs without a seed, {len(seeded)} with one")
        continue
    for key in plain[0]:
        if key not in TIMES and plain[0][key] != plain[1][key]:
            faults.append(f"{name}: {key} is {plain[0][key]}, then {plain[1][key]} without a seed")
    base = plain[0]
    for key in ("peak_reserved_bytes", "peak_frames_used_bytes"):
        values = [run[key] for run in [base] + seeded]
        print(f"{name}, {sys.argv[2]} streams: {key} {base[key]} without a seed, {min(values[1:])} to "
              f"{max(values[1:])} with one: {(max(values) - min(values)) / 2**20:g} MiB apart")
        if not spread_over_streams:
            bad = max(values) != min(values)
        elif key == "peak_frames_used_bytes":
            bad = max(values) > base[key] * 1.015 or min(values) < base[key] * 0.985
        else:
            bad = max(values) > base["peak_allocated_bytes"] * 1.6 or min(values) < base[key] - 2 * STEP
        if bad:
            faults.append(f"{name}: {key} is beyond its bound: {values}")
    if any(run["peak_allocated_bytes"] != base["peak_asked_bytes"] for run in plain + seeded):
        faults.append(f"{name}: the peak served is not the trace's")
for fault in faults:
    print("   ", fault)
sys.exit(bool(faults))
PYTHON
for streams in 0 4; do
    if python3 "$WORK/judge.py" "$WORK/runs$streams" $streams; then
        passed=$((passed + 1))
    else
        fail "$streams streams: see above"
    fi
done
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --verify --json --model a100 --device-memory 40GiB
json 'r["ok"]'
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --verify --json --model mi210 --device-memory 64GiB
json 'r["ok"]'
finish
