#!/usr/bin/env bash
# How well the bundled traces are packed, and that it depends on the trace alone: on one stream it makes no difference
# how far the device is, which the seed decides.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

for seed in none 1 2 5; do
    seeding=()
    [ "$seed" = none ] || seeding=(--seed "$seed")
    run 0 replay "$TORCH"/*.csv.gz --backend sim --json "${seeding[@]}"
    json 'r["ok"] and r["efficiency"] >= 0.99 and r["efficiency_frames_used"] >= 0.99'
    sed "s/^/$seed\t/" "$WORK/out" >>"$WORK/runs"
done

cat >"$WORK/judge.py" <<'PYTHON'
import json, os, sys

# Peak allocated / peak held, what the policy reaches: a change that packs worse has to say so here. Slabs: calls of the
# driver, which small steps make more of.
FLOOR = {"densenet161": 0.997, "gpt2": 0.997, "llama-generate-beam4": 0.996, "llama-recompute": 0.999,
         "moe-offload-recompute": 0.994}
MOST_GROWTHS = 600
faults, seen = [], {}
for line in open(sys.argv[1], encoding="utf-8"):
    seed, text = line.split("\t", 1)
    run = json.loads(text)
    name = os.path.basename(run["trace"]).split(".")[0]
    seen.setdefault(name, []).append((run["peak_reserved_bytes"], run["peak_frames_used_bytes"]))
    if run["efficiency"] < FLOOR[name] or run["grows"] > MOST_GROWTHS:
        faults.append(f"{name}, seed {seed}: {run['efficiency']} packed in {run['grows']} growths")
if sorted(seen) != sorted(FLOOR):
    faults.append(f"traces: {sorted(seen)}")
faults += [f"{name} held and used, by seed: {peaks}" for name, peaks in seen.items() if len(set(peaks)) != 1]
print("\n".join(faults))
sys.exit(bool(faults))
PYTHON
python3 "$WORK/judge.py" "$WORK/runs" || fail "the traces are packed worse, or by chance"
finish
