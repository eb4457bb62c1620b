#!/usr/bin/env bash
# Replay: every format, the report, the options, and failures that are not the input's.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

cat >"$WORK/small.csv" <<'EOF'
# a small trace
S,0,2097152,0
a,1,1000,0
a,2,3000000,0
a,3,7,0
a,4,0,0
f,1,1000,0
f,77,64,0
a,5,5000000,3
f,2,3000000,0
EOF
run 0 replay "$WORK/small.csv" --backend sim
says out "peak allocated"
says out "result                        ok"
run 0 replay "$WORK/small.csv" --backend sim --json --verify
python3 -m json.tool "$WORK/out" >/dev/null || fail "replay --json is no JSON"
json 'r["trace"].endswith("small.csv") and r["format"] == "torch-csv" and r["policy"] == "moonbright"'
json 'r["backend"] == "sim" and r["simulated"] and r["verify"] == "edges"'
json 'r["peak_allocated_bytes"] == 3000000 + 7 + 5000000'
json 'r["peak_reserved_bytes"] >= r["peak_frames_used_bytes"] >= r["peak_allocated_bytes"]'
json 'abs(r["efficiency"] - r["peak_allocated_bytes"] / r["peak_reserved_bytes"]) < 1e-6 and 0 < r["efficiency"] <= 1'
json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["ok"] and r["ops_per_second"] > 0'
json 'r["malloc_calls"] == 5 and r["free_calls"] == 2 and r["frees_before_trace"] == 1 and r["live_blocks_at_end"] == 3'
json 'r["recorded_peak_reserved_bytes"] == 2097152 and r["blocks_unchecked"] == 2 and r["streams"] == 2'
json 'r["malloc"]["count"] == 5 and r["malloc"]["p50_ns"] <= r["malloc"]["p99_ns"] <= r["malloc"]["max_ns"]'

# Every format, compressed or not, from a file or standard input.
run 0 replay "$TORCH/gpt2.csv.gz" --backend sim --json --tables
json 'r["tables_entries"] > 0 and r["tables_wrong"] == r["tables_foreign"] == r["tables_repaired"] == 0'
run 0 replay "$WORK/small.csv" --backend sim --tables=repair
says out "entries compared"
run 2 replay "$WORK/small.csv" --backend sim --tables=mend
says err "expected nothing or repair"
run 2 replay "$WORK/small.csv" --tables --policy torch-caching
says err "which writes no page tables"
run 0 replay "$CORPUS/trace_rmm/good" --backend sim --json --verify=full
json 'r["format"] == "rmm-csv" and r["recorded_failures"] == 1 and r["frees_before_trace"] == 1 and r["verify"] == "full"'
json 'r["stream_waits"] == 1'
for protocol in 0 1 2 3 4 5; do
    run 0 replay "$CORPUS/trace_snapshot/good_protocol_$protocol" --backend sim --json --verify
    json 'r["format"] == "torch-snapshot" and r["peak_allocated_bytes"] == 1512 and r["malloc_calls"] == 3'
    json 'r["recorded_peak_reserved_bytes"] == 2 << 20 and r["ignored_records"] == 2 and r["recorded_failures"] == 1'
done
for name in torch_gz rmm_gz snapshot_gz; do
    run 0 replay "$CORPUS/trace_any/$name" --backend sim --json
    "$MOONBRIGHT" replay - --backend sim --json <"$CORPUS/trace_any/$name" >"$WORK/out" || fail "stdin: $name"
    json 'r["ok"] and r["trace"] == "-"'
done

# Several traces: one object each, in order.
run 0 replay "$WORK/small.csv" "$CORPUS/trace_rmm/good" "$WORK/small.csv" --backend sim --json
[ "$(wc -l <"$WORK/out")" -eq 3 ] || fail "three traces gave $(wc -l <"$WORK/out") lines"

# A bad one among good ones: the others are still served, the status is 2.
run 2 replay "$CORPUS/trace_torch/double_free" "$WORK/small.csv" --backend sim --json
[ "$(wc -l <"$WORK/out")" -eq 1 ] || fail "a bad trace took a good one with it"
says err "double_free:3: block 0x1 is freed a second time"

# Policies, limits, memory that does not suffice.
run 0 replay "$WORK/small.csv" --backend sim --json --verify --policy moonbright-blocking
json 'r["policy"] == "moonbright-blocking" and r["ok"]'
run 0 replay "$WORK/small.csv" --backend sim --json --events 3
json 'r["malloc_calls"] == 2 and r["events"] == 3'
printf 'a,1,60000000,0\na,2,60000000,0\na,3,60000000,0\na,4,1000,0\nf,3,60000000,0\n' >"$WORK/large.csv"
run 1 replay "$WORK/large.csv" --backend sim --device-memory 128MiB --json --verify
json 'r["failed_requests"] == 1 and r["failed_bytes"] == 60000000 and not r["ok"] and r["wrong_accesses"] == 0'
json 'r["peak_allocated_bytes"] == 120001000 and r["peak_asked_bytes"] == 180001000 and r["error"] is None'
says err "a request of 60000000 bytes failed: MB_ERR_NO_MEMORY"
run 1 replay "$WORK/large.csv" --backend sim --limit 100MiB --json
json 'r["failed_requests"] >= 1 and 0 < r["efficiency"] <= 1 and 0 < r["efficiency_frames_used"] <= 1'
# Nothing served, nothing held: not perfect.
printf 'a,1,60000000000,0\n' >"$WORK/none.csv"
run 1 replay "$WORK/none.csv" --backend sim --device-memory 128MiB --json
json 'r["peak_allocated_bytes"] == 0 and r["peak_asked_bytes"] == 60000000000 and r["efficiency"] == 0'
# A real trace in less memory than it needs.
run 1 replay "$TORCH/gpt2.csv.gz" --backend sim --device-memory 20GiB --json
json '0.8 < r["efficiency"] <= 1 and 0 < r["efficiency_frames_used"] <= 1 and not r["ok"]'
json 'r["peak_allocated_bytes"] <= r["peak_reserved_bytes"] <= 20 << 30 < r["peak_asked_bytes"] == 23497078088'
run 1 replay "$WORK/large.csv" --backend sim --device-memory 128MiB
says out "peak asked"

# A device that cannot be opened: no page of zeros, nothing that looks measured, and the reason.
refused_open() {
    local status=$1 name=$2
    shift 2
    run "$status" replay "$WORK/small.csv" "$@"
    [ ! -s "$WORK/out" ] || fail "$* printed a report: $(head -3 "$WORK/out")"
    says err "$name"
    run "$status" replay "$WORK/small.csv" "$@" --json
    json "r['ok'] is False and r['error']['name'] == '$name' and r['error']['detail'] and r['efficiency'] == 0"
    json 'r["backend"] is None and "peak_reserved_bytes" not in r and "wrong_accesses" not in r'
    says err "$name"
}
refused_open 2 MB_ERR_CONFIG --backend sim --config bogus:1
if "$MOONBRIGHT" info --json | python3 -c 'import json, sys
sys.exit(not any(b["name"] == "cuda" and not b["available"] for b in json.load(sys.stdin)["backends"]))'; then
    refused_open 1 MB_ERR_NO_DEVICE --backend cuda
else
    echo "note: the backend cuda is usable here, so its refusal is not seen"
fi

# What cannot be opened, and configuration that is wrong.
run 2 replay "$WORK/missing.csv"
says err "missing.csv: cannot be opened: No such file"
run 2 replay "$WORK/small.csv" --backend sim --config bogus:1
says err "MB_ERR_CONFIG"
run 2 replay "$WORK/small.csv" --backend nothing
run 2 replay "$WORK/small.csv" --backend sim --model z80

# Nothing is drawn where standard error is no terminal.
run 0 replay "$WORK/small.csv" --backend sim
[ ! -s "$WORK/err" ] || fail "standard error has: $(head -c 200 "$WORK/err")"
finish
