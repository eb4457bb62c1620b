#!/usr/bin/env bash
# bench all, bench compare and map as a user types them, on the software GPU and with made-up results.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# ------------------------------------------------------------------ bench compare
# result FILE DEVICE MEDIAN SAMPLES [P99 MIN]: a result of one row.
result() {
    python3 - "$@" <<'PYTHON'
import json, sys
name, device, median, samples = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
spread = {"median": median}
if len(sys.argv) > 5:
    spread |= {"p99": float(sys.argv[5]), "min": float(sys.argv[6])}
rows = [{"what": "map", "how": "x", "bytes": 2097152, "samples": samples, "modelled": False, "host_us": spread}]
json.dump({"bench": "bench map", "device": device, "driver": "1", "rows": rows}, open(name, "w"))
PYTHON
}
a=$WORK/a.json b=$WORK/b.json
result "$a" GPU 100 300 104 97
result "$b" GPU 100 300 104 97
run 0 bench compare "$a" "$b"
says out "1 figures: 1 same, 0 worse"
# 5% is below the floor of 10%; with a floor of 1% it is outside of what 300 samples allow.
result "$b" GPU 105 300 109 102
run 0 bench compare "$a" "$b"
run 1 bench compare "$a" "$b" --floor 1
says out "WORSE"
run 0 bench compare "$b" "$a" --floor 1
says out "better"
# The same medians of samples that spread widely: no finding.
result "$a" GPU 100 9 190 10
result "$b" GPU 150 9 240 60
run 0 bench compare "$a" "$b" --floor 1
result "$a" GPU 100 3000 190 10
result "$b" GPU 150 3000 240 60
run 1 bench compare "$a" "$b" --json
json 'r["WORSE"] == 1 and r["ok"] is False and 1.49 < r["rows"][0]["ratio"] < 1.51 and r["rows"][0]["bound"] == 0.1'
# One sample says nothing about noise.
result "$a" GPU 100 1
result "$b" GPU 140 1
run 0 bench compare "$a" "$b"
run 1 bench compare "$a" "$b" --single 20
# Another machine or driver.
result "$b" "other GPU" 100 300 104 97
run 2 bench compare "$a" "$b"
says err "other GPU"
says err "--other-machines"
run 0 bench compare "$a" "$b" --other-machines
# Missing and new rows, other units.
# figures FILE WHAT/UNIT/VALUE/KIND...; $MACHINE: of which machine.
figures() {
    python3 - "$@" <<'PYTHON'
import json, os, sys
rows = []
for text in sys.argv[2:]:
    what, unit, value, kind = text.split("/")
    rows.append({"experiment": "e", "what": what, "how": "h", "metric": "m", "unit": unit, "kind": kind, "origin": 0,
                 "value": None if value == "-" else float(value)})
machine = os.environ.get("MACHINE", "M")
json.dump({"bench": "x", "origins": [{"machine": "as published"}, {"machine": machine, "driver": "D"}],
           "figures": [row | {"origin": 1} for row in rows]}, open(sys.argv[1], "w"))
PYTHON
}
figures "$a" one/us/10/measured two/us/10/measured
figures "$b" one/us/10/measured three/us/10/measured
run 1 bench compare "$a" "$b"
says out "1 missing, 1 new"
run 0 bench compare "$a" "$b" --allow-missing
figures "$b" one/us/10/measured two/us/-/measured
run 1 bench compare "$a" "$b"
says out "MISSING"
figures "$b" one/ns/10/measured two/us/10/measured
run 1 bench compare "$a" "$b"
says out "UNITS DIFFER"
# Which way is better, and what nobody knows.
python3 - "$a" "$b" <<'PYTHON'
import json, sys
for name, rate, count in ((sys.argv[1], 10, 4), (sys.argv[2], 5, 8)):
    row = {"experiment": "e", "how": "h", "metric": "m", "kind": "measured", "origin": 0}
    json.dump({"bench": "x", "origins": [{"machine": "M", "driver": "D"}],
               "figures": [row | {"what": "rate", "unit": "M/s", "value": rate},
                           row | {"what": "count", "unit": "", "value": count}]}, open(name, "w"))
PYTHON
run 1 bench compare "$a" "$b"
says out "1 worse, 0 better, 1 changed"
# Models have no noise: 1% is a finding; published figures are nobody's.
figures "$a" one/us/100/modelled two/us/100/published
figures "$b" one/us/101/modelled two/us/200/published
run 1 bench compare "$a" "$b"
says out "1 figures: 0 same, 1 worse"
run 0 bench compare "$a" "$b" --model 2
# A model that runs alike everywhere is no other machine: its figures are new or missing. One beside a host is, and the
# refusal names what the other file measured, not what it cites.
figures "$a" one/us/100/measured two/us/7/published
MACHINE="software GPU" figures "$b" one/us/100/modelled
run 2 bench compare "$a" "$b"
says err "the new ones of «no machine»"
MACHINE="model on B" figures "$b" one/us/100/modelled
run 2 bench compare "$b" "$a"
says err "the new ones of «M»"
python3 - "$a" "$b" <<'PYTHON'
import json, sys
all = json.load(open(sys.argv[1]))
all["origins"].append({"machine": "software GPU"})
all["figures"].append(all["figures"][0] | {"what": "model", "kind": "modelled", "origin": 2})
json.dump(all, open(sys.argv[2], "w"))
PYTHON
run 0 bench compare "$a" "$b"
says out "1 same, 0 worse, 0 better, 0 changed, 0 missing, 1 new"
run 1 bench compare "$b" "$a"
says out "1 missing"
# Input that is none.
run 2 bench compare "$a"
run 2 bench compare "$a" "$WORK/nothing.json"
says err "cannot be opened"
echo '{"rows": [1, 2' >"$b"
run 2 bench compare "$a" "$b"
says err "line 2, column 1"
echo '{"some": "thing"}' >"$b"
run 2 bench compare "$a" "$b"
says err "no result of a bench"
: >"$b"
run 2 bench compare "$a" "$b"
says err "holds no result"
run 2 bench compare "$a" "$a" --floor much
# All that is committed can be read and is the same as itself.
for file in "$SOURCE"/bench/results/*.json "$SOURCE"/bench/results/*.jsonl "$SOURCE"/bench/results/*.profile; do
    run 0 bench compare "$file" "$file"
done

# ------------------------------------------------------------------ the benches of `bench all`
for bench in degrade wrap safety latency; do
    run 0 bench "$bench" --backend sim --quick --json --commit abc
    json 'r["commit"] == "abc" and all(f["origin"] < len(r["origins"]) for f in r["figures"]) and r["figures"]'
    json 'all(o["machine"] and o["command"] for o in r["origins"])'
done
run 0 bench calls --backend sim --quick --json
json '{"mb_malloc_async", "mb_mem_wake", "alias"} <= {f["what"] for f in r["figures"]}'
json 'all(f["kind"] == "modelled" for f in r["figures"] if f["what"] == "map")'
run 0 bench full --backend sim --quick --json
json 'all(f["value"] == 0 for f in r["figures"] if f["what"] == "requests refused")'
run 0 bench churn --backend sim --hours 1 --rate 300 --json
json 'all(f["value"] == 0 for f in r["figures"] if f["what"] in ("allocations failed", "wrong accesses"))'
json 'any(f["what"] == "requests served" and f["value"] > 100 for f in r["figures"])'
run 2 bench churn --hours 0
run 0 bench wrap --backend sim --ring 64GiB --json
# Fresh addresses wait for a flush, an eighth of the ring at most and what is under way; with invalidates of their own none wait.
json '(w := {(f["what"], f["how"], f["metric"]): f["value"] for f in r["figures"]}) and (
      8 << 30 <= w["quarantine", "policy:fresh", "most"] <= 12 << 30 and w["reclaim", "policy:fresh", "flushes a round"] >= 6 and
      w["reclaim", "policy:fresh", "host, a round"] > 0 and w["reclaim", "policy:inline", "flushes a round"] == 0)'
json 'len([f for f in r["figures"] if f["metric"] == "now" and f["how"] == "policy:fresh"]) >= 30'
run 0 bench wrap --backend sim --ring 8GiB
says out "«modelled»"
run 0 bench latency --backend sim --quick --threads --json
json '{"alone", "beside maps, no limit", "beside maps, at most 1,000/s"} <= {f["how"] for f in r["figures"]}'
json 'all(f["value"] > 0 for f in r["figures"] if f["how"] == "alone")'
# Without a driver it says so.
if [[ $(ldconfig -p) != *libcuda.so.1* ]]; then
    run 1 bench driver
    says err "libcuda.so.1 is not here"
    # What fails is told without progress, too.
    run 1 bench all --backend cuda --only scale,map --quiet --json -
    says err "scale FAILED after"
    says err "map FAILED after"
    [ "$(wc -l <"$WORK/err")" = 4 ] || fail "not one line for each bench: $(cat "$WORK/err")"
fi

# ------------------------------------------------------------------ bench all
run 0 bench all --backend sim --quick --only map,beside,litmus,probe --html "$WORK/page.html" --json "$WORK/all.json" \
    --include "$SOURCE/bench/results/cuda-nvidia-h200-2026-11-30.json" "$SOURCE/bench/results/h200-inline.profile"
says err "[ 1/4] map"
cp "$WORK/all.json" "$WORK/out"
json '{"published", "measured", "modelled", "calculated"} == {f["kind"] for f in r["figures"]}'
json 'any("h200" in o["machine"].lower() and o["file"].endswith(".json") for o in r["origins"])'
json 'any(abs(f["value"] - 693) < 1 for f in r["figures"] if f["what"] == "Robson bound, 2 MB pages" and f["kind"] == "calculated")'
# What is published stands beside the stock driver and MoonBright, each row of one machine and one file.
json 'any(s["what"] == "map 2 GB, until complete" and s["published"] == 14 and s["published_stock"] == 36000
          and s["stock"] == 33683.7 and s["stock_other_way"] == 91.9 and s["moonbright"] == 11.19
          and 3010 < s["ratio"] < 3011 and s["kind"] == "measured" and s["machine"] == "NVIDIA H200"
          for s in r["side_by_side"])'
json 'all(s["kind"] == "not run" and s["moonbright"] is None and s["ratio"] is None
          for s in r["side_by_side"] if s["what"].startswith("allocation time saved"))'
json '{"page tables of 128 MB", "TLB flush, above a map", "map 2 GB, four GPUs at once", "addresses 80 GB can need",
       "TTFT with prefix cache over vAttention", "beam search tokens over vLLM", "allocation time saved, mean",
       "first touch of a page above a hit"} <= {s["what"] for s in r["side_by_side"]}'
cp "$WORK/page.html" "$WORK/out"
says out "viewport"
says out "not run"
says out "<svg"
says out "prefers-color-scheme:dark"
says out "33,684"
if grep -q "<script" "$WORK/page.html"; then
    fail "the page has a script"
fi
run 0 bench compare "$WORK/all.json" "$WORK/all.json"
run 0 bench all --no-run --html - --include "$SOURCE/bench/results/frag-models.json"
says out "llama-recompute"
# Cycles stand beside published cycles, and nanoseconds beside none.
cat >"$WORK/facts.json" <<'END'
{"device": "NVIDIA H200", "tables": "inline", "driver": "1", "command": "moonbright probe", "facts":
 [{"name": "first_touch_ns", "unit": "ns", "value": 420, "note": "832 cycles at 1980 MHz"}]}
END
run 0 bench all --no-run --json "$WORK/out" --html "$WORK/page.html" --include "$WORK/facts.json"
json 'any(s["what"] == "first touch of a page above a hit" and s["published_stock"] == 956 and s["moonbright"] == 832
          and s["unit"] == "cycles" for s in r["side_by_side"])'
# Every published figure is in a row, and nothing that is committed comes from a machine that nobody knows.
run 0 bench all --no-run --json "$WORK/all.json" --html "$WORK/page.html" --include "$SOURCE"/bench/results/*.json*
cp "$WORK/all.json" "$WORK/out"
json 'all(any(f["value"] in (s["published"], s["published_stock"]) for s in r["side_by_side"])
          for f in r["figures"] if f["kind"] == "published")'
json 'not [o for o in r["origins"] if o["machine"].startswith("unknown")]'
# Page tables that the driver makes are not seen; older results have 0 for them.
json 'len([f for f in r["figures"] if f["what"].startswith("page-table memory") and f["kind"] == "measured"
           and f["value"] is None and "does not tell" in f["note"]]) >= 28'
json 'not any(f["what"].startswith("page-table memory") and f["kind"] == "measured" and f["value"] == 0 for f in r["figures"])'
json 'len({o["machine"].split(",")[0] for o in r["origins"] if "h200" in o["machine"].lower()
           and "simulated" not in o["machine"] and "model" not in o["machine"]}) == 1'
# The training study, of its own machine: its figures, and its rows of the first table.
json 'len([s for s in r["side_by_side"] if s["what"].startswith("training, held: ") and s["stock"] < s["moonbright"] <= 1
           and s["kind"] == "measured" and s["way"] == "MoonBright, inline tables"]) == 7'
json '{f["metric"] for f in r["figures"] if f["experiment"] == "train"} >= {"step, median", "driver calls", "peak reserved"}'
json 'any(s["what"] == "map 2 GB, two GPUs at once" and s["kind"] == "measured" for s in r["side_by_side"])'
# The vendor's pool is not MoonBright; what compared nothing is not compared.
json 'all(f["how"] == "CUDA'"'"'s pool" for f in r["figures"] if "efficiency" in f["experiment"]
          and r["origins"][f["origin"]]["file"].endswith("pool-h200.jsonl"))'
json 'any(s["what"].startswith("TTFT") and s["file"].endswith("kv-h200-7b.jsonl") and 9.5 < s["moonbright"] < 9.6
          for s in r["side_by_side"])'
# With the same kernels on both sides, not the 1.09 of tables that a slower kernel reads.
json 'any(s["what"].startswith("beam") and s["file"].endswith("kv-h200-groups.jsonl") and 1.25 < s["moonbright"] < 1.26
          for s in r["side_by_side"])'
json 'any(f["how"] == "MoonBright over paged-flashinfer, at most" and "0.85 at least" in f["note"] for f in r["figures"])'
json 'any(s["what"] == "first touch of a page above a hit" and s["file"].endswith("h200-probe.jsonl") and s["moonbright"] == 839
          for s in r["side_by_side"])'
# What was not reached is told: on NVIDIA's samples calls save less than was published, on average.
json 'any(s["what"] == "allocation time saved, mean" and s["file"].endswith("h200-samples.jsonl") and 66 < s["moonbright"] < 67
          for s in r["side_by_side"])'
# Two runs of one file are not compared, nor is a layout that the library did not choose.
cat >"$WORK/kv.jsonl" <<'END'
{"what": "run", "commit": "a", "gpu": "NVIDIA H200", "driver": "1", "command": "one"}
{"what": "prefix", "cache": "moonbright", "model": "m", "tokens": 4096, "share": 0.9, "ttft_ms": 10}
{"what": "beam", "cache": "moonbright", "model": "m", "width": 2, "batch": 4, "tokens_per_s": 300, "group_layers": 8}
{"what": "beam", "cache": "paged", "model": "m", "width": 2, "batch": 4, "tokens_per_s": 100}
{"what": "run", "commit": "a", "gpu": "NVIDIA H200", "driver": "1", "command": "two"}
{"what": "prefix", "cache": "cuda-vmm", "model": "m", "tokens": 4096, "share": 0.9, "ttft_ms": 90}
END
run 0 bench all --no-run --json "$WORK/out" --html "$WORK/page.html" --include "$WORK/kv.jsonl"
json 'not any("at most" in f["how"] and " over " in f["how"] for f in r["figures"])'
json 'any(f["how"] == "moonbright, groups of 8" for f in r["figures"])'
# A note labels what follows it in its file; what is labelled is compared with nothing.
{
    echo '{"what": "note", "label": "first form", "note": "launches one by one"}'
    echo '{"what": "run", "commit": "0000000", "gpu": "GPU", "driver": "1"}'
    for cache in moonbright cuda-vmm; do
        echo "{\"what\": \"prefix\", \"cache\": \"$cache\", \"model\": \"m\", \"tokens\": 64, \"share\": 0.9, \"ttft_ms\": 2}"
    done
} >"$WORK/kv.jsonl"
run 0 bench all --no-run --json - --include "$WORK/kv.jsonl"
json 'sorted(f["how"] for f in r["figures"] if f["what"].startswith("TTFT, m")) == ["cuda-vmm, first form", "moonbright, first form"]'
json 'not any(f["how"].startswith("MoonBright over cuda-vmm") for f in r["figures"])'
# Kernels are compared with the same kernels; where FlashInfer read no tables, beams have the others.
kv_beams() { # CACHE RATE...
    echo '{"what": "run", "commit": "0000000", "gpu": "GPU", "driver": "1"}'
    while [ $# -gt 0 ]; do
        echo "{\"what\": \"beam\", \"cache\": \"$1\", \"model\": \"m\", \"width\": 2, \"batch\": 8, \"tokens_per_s\": $2}"
        shift 2
    done
}
kv_beams moonbright 300 paged 200 moonbright-flashinfer 450 paged-flashinfer 500 >"$WORK/kv.jsonl"
run 0 bench all --no-run --json - --include "$WORK/kv.jsonl"
json '[s["moonbright"] for s in r["side_by_side"] if s["what"].startswith("beam")] == [0.9]'
kv_beams moonbright 300 paged 200 paged-flashinfer 500 >"$WORK/kv.jsonl"
run 0 bench all --no-run --json - --include "$WORK/kv.jsonl"
json '[s["moonbright"] for s in r["side_by_side"] if s["what"].startswith("beam")] == [1.5]'
# Of two machines no ratio is made.
python3 - "$WORK" <<'PYTHON'
import json, sys
row = lambda how, us: {"what": "map", "how": how, "bytes": 2147483648, "samples": 5, "modelled": False, "host_us": {"median": us},
                       "complete_us": {"median": us}}
for name, device, rows in (("one", "A", [row("device-inline", 5)]), ("two", "B", [row("CUDA VMM, 2 MB handles", 500)]),
                           ("both", "C", [row("device-inline", 7), row("CUDA VMM, 2 MB handles", 70)])):
    json.dump({"bench": "bench map", "device": device, "driver": "1", "rows": rows}, open(f"{sys.argv[1]}/{name}.json", "w"))
PYTHON
run 0 bench all --no-run --json - --include "$WORK/one.json" "$WORK/two.json"
json '[s["ratio"] for s in r["side_by_side"] if s["what"] == "map 2 GB, until complete"] == [None]'
run 0 bench all --no-run --json - --include "$WORK/one.json" "$WORK/two.json" "$WORK/both.json"
json '[(s["moonbright"], s["ratio"]) for s in r["side_by_side"] if s["what"] == "map 2 GB, until complete"] == [(7, 10)]'
run 2 bench all --backend sim
says err "say where to"
run 2 bench all --html - --only nothing
# A name that is none is told before the work, not left out of it; so is a backend that cannot be measured.
run 2 bench all --backend sim --quick --json - --only map,nonsense
says err '--only names "nonsense"'
run 2 bench all --json - --backend nonsense
says err "possible on sim and cuda"
run 2 bench all --html - --include
run 2 bench all --no-run --html - --include "$WORK/missing.json"
# NVIDIA's samples: published, the driver, MoonBright; a program that is wrong counts nowhere, one that fails anyway says nothing.
# Before the run is one that was cut off, whose times are not of its sums.
(head -3 "$SOURCE/tests/data/samples.jsonl" && cat "$SOURCE/tests/data/samples.jsonl") >"$WORK/samples.jsonl"
run 0 bench all --no-run --json "$WORK/out" --html "$WORK/page.html" --include "$WORK/samples.jsonl"
json '(s := {row["what"]: row for row in r["side_by_side"]}) and (
      s["allocation time saved, mean"]["published"] == 76.5 and abs(s["allocation time saved, mean"]["moonbright"] - 82.5) < 1e-6 and
      s["allocation time saved, most"]["published"] == 99.3 and abs(s["allocation time saved, most"]["moonbright"] - 90) < 1e-6 and
      (t := s["time in allocation calls, all programs run"]) and (t["stock"], t["moonbright"], t["ratio"]) == (600, 120, 5) and
      t["machine"] == "NVIDIA H200")'
json '{(f["what"], f["metric"]) for f in r["figures"] if f["unit"] == "failures" and f["value"]} >= {("scan", "wrong"),
      ("programs that are wrong", "total")} and not [f for f in r["figures"] if f["what"] == "simpleGL"]'
grep -qF "2 of the 1,013 programs, all of NVIDIA" "$WORK/page.html" || fail "the page does not tell how many programs are covered"
# A profile that was cut off, in a value or behind one.
run 0 probe --backend sim -o "$WORK/whole.profile"
run 0 bench all --no-run --json - --include "$WORK/whole.profile"
for bytes in 5 9 200; do
    head -c -$bytes "$WORK/whole.profile" >"$WORK/cut.profile"
    run 2 bench all --no-run --json - --include "$WORK/cut.profile" && says err "the profile is cut off"
    run 1 replay "$TORCH/gpt2.csv.gz" --backend sim --events 9 --config "profile:$WORK/cut.profile"
    says err "the file is cut off"
done
head -c -1 "$SOURCE/bench/results/h200-inline.profile" >"$WORK/cut.profile"
run 2 bench all --no-run --json - --include "$WORK/cut.profile" && says err "the profile is cut off"
run 1 bench all --no-run --html "$WORK/none/page.html"

# ------------------------------------------------------------------ map
run 0 map "$TORCH/gpt2.csv.gz" -o "$WORK/map.html" --moments 4
cp "$WORK/map.html" "$WORK/out"
says out "the peak"
says out "stitched"
run 0 map "$TORCH/gpt2.csv.gz" -o - --moments 1
python3 - "$WORK" <<'PYTHON'
import pickle, sys
block = lambda address, size, state: {"address": address, "size": size, "requested_size": size, "state": state}
base = 1 << 40
events = [{"action": "segment_alloc", "addr": base, "size": 20 << 20, "stream": 0},
          {"action": "alloc", "addr": base, "size": 8 << 20, "stream": 0},
          {"action": "alloc", "addr": base + (8 << 20), "size": 2 << 20, "stream": 0},
          {"action": "free_requested", "addr": base, "size": 8 << 20, "stream": 0},
          {"action": "free_completed", "addr": base, "size": 8 << 20, "stream": 0}]
segment = {"address": base, "total_size": 20 << 20, "stream": 0, "segment_type": "large", "blocks": [
    block(base, 8 << 20, "inactive"), block(base + (8 << 20), 2 << 20, "active_allocated"),
    block(base + (10 << 20), 10 << 20, "inactive")]}
pickle.dump({"segments": [segment], "device_traces": [events]}, open(sys.argv[1] + "/snapshot.pickle", "wb"))
pickle.dump({"segments": [{"address": 5}]}, open(sys.argv[1] + "/odd.pickle", "wb"))
pickle.dump({"nothing": []}, open(sys.argv[1] + "/none.pickle", "wb"))
pickle.dump(print, open(sys.argv[1] + "/code.pickle", "wb"))
PYTHON
run 0 map "$WORK/snapshot.pickle" -o "$WORK/map.html" --moments 3
cp "$WORK/map.html" "$WORK/out"
# At the end 2 MiB of 20 are in use, in the middle 8 MiB, before all events nothing is held.
says out "2.00 MiB in use by 1 blocks, 20.00 MiB held (10.0%). 2 holes, the largest 10.00 MiB"
says out "8.00 MiB in use by 1 blocks, 20.00 MiB held"
says out "0 B in use by 0 blocks, 0 B held"
run 2 map "$WORK/odd.pickle" -o "$WORK/map.html"
says err "segment 0 is not as expected"
run 2 map "$WORK/none.pickle" -o "$WORK/map.html"
says err 'no list "segments"'
run 2 map "$WORK/code.pickle" -o "$WORK/map.html"
says err "GLOBAL"
head -c 100 "$WORK/snapshot.pickle" >"$WORK/cut.pickle"
run 2 map "$WORK/cut.pickle" -o "$WORK/map.html"
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --events 8000 --config "audit:$WORK/audit.log" --backend sim --quiet
# Of a closed log the moment before its close is the last one.
run 0 map "$WORK/audit.log" -o "$WORK/map.html" --moments 1
run 0 map "$WORK/audit.log" -o "$WORK/map.html" --moments 5
cp "$WORK/map.html" "$WORK/out"
says out "owner"
if env MOONBRIGHT="audit:$WORK/audit.log" "$MOONBRIGHT" map live -o "$WORK/live.html" 2>"$WORK/err"; then
    cmp -s "$WORK/live.html" "$WORK/map.html" && fail "24 moments are the same as 5"
    passed=$((passed + 1))
else
    fail "map live: $(cat "$WORK/err")"
fi
run 2 map live -o "$WORK/map.html"
says err "MOONBRIGHT=audit:PATH"
run 2 map "$WORK/none" -o "$WORK/map.html"
run 2 map "$TORCH/gpt2.csv.gz"
run 2 map "$TORCH/gpt2.csv.gz" -o "$WORK/map.html" --moments 0
: >"$WORK/empty"
run 2 map "$WORK/empty" -o "$WORK/map.html"
says err "empty"
echo "op,id,bytes,stream" >"$WORK/empty.csv"
run 2 map "$WORK/empty.csv" -o "$WORK/map.html"
run 1 map "$TORCH/gpt2.csv.gz" -o "$WORK/none/map.html"
finish
