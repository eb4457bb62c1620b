#!/usr/bin/env bash
# The scripts that measure on a GPU, as far as that goes without one: every step of gpu-bench on the software GPU, its
# file, its time limit, and the verdict of gpu-variants on figures that are made up here.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
bench=$MB_SOURCE_DIR/scripts/gpu-bench variants=$MB_SOURCE_DIR/scripts/gpu-variants
export COMMIT=abc1234 MB_DRIVER_FILE=/dev/null # what is made up here stands for a GPU
[ -e /proc/driver/nvidia/version ] && skip "this machine has a GPU: scripts/gpu-bench itself can be run"

expect 77 "$bench" "$MB_BUILD_DIR" "$scratch/none.jsonl"
expect_text "SKIP: gpu-bench: the NVIDIA kernel driver is not loaded"

expect 0 "$bench" "$MB_BUILD_DIR" "$scratch/dry.jsonl" --dry-run --seconds 100000 # CTest ends it earlier
expect_text "0 failed; 0 without time"
expect 0 python3 - "$scratch/dry.jsonl" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
for row in rows:
    assert row["commit"] == "abc1234" and "gpu" in row and "driver" in row, row
steps = {row["step"]: row["state"] for row in rows if row.get("what") == "step"}
assert all(state == "done" for state in steps.values()), steps
wanted = [f"{name}-{tables}" for tables in ("inline", "isolated", "driver")
          for name in ("map", "unmap", "remap", "alias", "protect", "alloc")]
wanted += ["beside-inline", "beside-isolated", "hot-inline", "bench_cuda_async", "litmus-inline", "probe-isolated"]
assert not set(wanted) - set(steps), set(wanted) - set(steps)
assert list(steps)[-1].startswith("litmus-dangerous"), list(steps)
assert {row["bench"] for row in rows if "bench" in row} >= {"bench map", "bench alloc", "bench hot", "bench beside"}
threads = {row["samples"] for r in rows if r.get("bench") == "bench hot" for row in r["rows"]}
assert threads == {1, 2, 4, 8, 16}, threads
PYTHON

# No time: nothing runs, and that is said.
expect 1 "$bench" "$MB_BUILD_DIR" "$scratch/late.jsonl" --dry-run --seconds 1 --steps hot,litmus
expect_text "hot-inline: no time left"
expect_text "5 without time"
expect 2 "$bench" "$MB_BUILD_DIR" "$scratch/x.jsonl" --steps nothing
expect_text "unknown: nothing"

# A program in the place of gputest: engine 5 is good, engine 9 takes no channel, the others hold up the driver.
cat >"$scratch/gputest" <<'PYTHON'
#!/usr/bin/env python3
import json, sys
keys = dict(a.split("=", 1) for a in sys.argv[2:] if "=" in a)
engine, good = keys.get("helper_engine"), keys.get("helper_engine") == "5" or keys["tables"] == "driver"
if engine == "9":
    sys.exit("FAIL: no channel")
one = lambda value: {"median": value, "p99": value, "min": value}
with open(keys["out"], "a", encoding="utf-8") as file:
    if sys.argv[1] == "variant":
        rows = [dict(what="variant", variant=keys["name"], tables=keys["tables"], open_us=1, close_us=1,
                     ready_us=45000 if good else 135000, unmap_one_us=34 if good else 1056, unmap_32_us=700, free_us=9,
                     to_gpu_gbs=54 if good else 20, to_host_gbs=54, within_gbs=1200)]
    else:
        rows = [dict(what=what, variant=keys["name"], entries=n, complete_us=one(value), host_us=one(5))
                for what, n, value in [("empty kernel", 0, 8), ("map", 1, 9), ("map", 1024, 11.9 if good else 12.7),
                                       ("map+invalidate", 1024, 14 if good else 16)]]
    for row in rows:
        file.write(json.dumps(row) + "\n")
PYTHON
chmod +x "$scratch/gputest"
expect 0 "$variants" "$scratch/gputest" "$scratch/variants.jsonl" --only default,engine-5,engine-9
expect_text "gpu-variants: engine-9: variant: status 1"
expect_text "verdict: engine-5 meets 5 of 5 goals"
expect_text "verdict: default meets 0: none"
expect 0 "$variants" --read "$scratch/variants.jsonl"
expect_text "best: 64 GB ms     engine-5 (45.0)"
expect 2 "$variants" "$scratch/gputest" "$scratch/variants.jsonl" --only engine-5,engine-99
expect_text "unknown: engine-99"
# The default is what is compared with: without it the run has failed.
printf '#!/bin/sh\nexit 1\n' >"$scratch/gputest"
expect 1 "$variants" "$scratch/gputest" "$scratch/bad.jsonl" --only default
expect_text "verdict: nothing was measured"
echo "PASS: gpu_bench"
