#!/usr/bin/env bash
# Policy models in the command: labels, figures, options, mistakes.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

moonbright=$1
[ -x "$moonbright" ] || fail "the command is not built: $moonbright"

cat >"$scratch/trace.csv" <<'CSV'
# op,id,bytes,stream
a,1,31457280,0
f,1,31457280,0
a,2,10485761,0
a,3,1,0
f,2,10485761,0
CSV

# The 30 MiB segment serves the 10 MiB request; the byte takes a small segment of 2 MiB.
expect 0 "$moonbright" replay "$scratch/trace.csv" --policy torch-caching
expect_text "policy torch-caching «model»"
expect_text "30.00 MiB  as the trace asked"
expect_text "32.00 MiB  all bytes held from the driver"
expect_text "no device was used"

expect 0 "$moonbright" replay "$scratch/trace.csv" --policy torch-caching --json
expect_text '"policy": "torch-caching", "label": "«model»", "model": true, "backend": null'
expect_text '"peak_allocated_bytes": 31457280'
expect_text '"peak_reserved_bytes": 33554432'
expect_text '"driver_calls": 2'
printf '%s\n' "$output" | python3 -m json.tool >"$scratch/parsed" || fail "not JSON: $output"

for policy in torch-expandable tf-bfc cuda-async gmlake gmlake,frag_limit:2MiB; do
    expect 0 "$moonbright" replay "$scratch/trace.csv" --policy "$policy"
    expect_text "policy $policy «model»"
done

# Below a limit requests are refused: that is a failure, and counted.
expect 1 "$moonbright" replay "$scratch/trace.csv" --policy torch-caching --limit 31MiB
expect_text "1 requests were refused"
expect_text "failed requests                1"

expect 2 "$moonbright" replay "$scratch/trace.csv" --policy torch
expect_text 'there is no policy "torch"'
expect_text "gmlake"
expect 2 "$moonbright" replay "$scratch/trace.csv" --policy torch-caching,depth:3
expect_text 'has no option "depth"'
expect 2 "$moonbright" replay "$scratch/trace.csv" --policy torch-caching --verify
expect_text "writes no memory"
echo 'a,1,x,0' >"$scratch/bad.csv"
expect 2 "$moonbright" replay "$scratch/bad.csv" --policy gmlake

# The table of bench frag.
expect 2 "$moonbright" bench
expect_text "frag"
expect 2 "$moonbright" bench speed
expect_text 'there is no bench "speed"'
expect 0 "$moonbright" bench frag --help
expect_text "--policies"
expect 0 "$moonbright" bench frag "$scratch/trace.csv" --policies torch-caching+tf-bfc
expect_text "torch-caching «model»"
expect_text "tf-bfc «model»"
expect 0 "$moonbright" bench frag "$scratch/trace.csv" --policies moonbright+gmlake --json --commit abc
printf '%s\n' "$output" | python3 -c '
import json, sys
table = json.load(sys.stdin)
assert table["ok"] and table["commit"] == "abc" and table["bench"] == "frag", table
ours, model = table["rows"]
assert ours["policy"] == "moonbright" and not ours["model"] and ours["backend"] == "sim", ours
assert model["policy"] == "gmlake" and model["model"] and model["label"] == "«model»", model
for row in table["rows"]:
    assert row["trace"] == "trace" and row["failed_requests"] == 0, row
    assert row["peak_allocated_bytes"] == 31457280, row
    assert row["peak_reserved_bytes"] >= row["peak_granted_bytes"] >= row["peak_allocated_bytes"], row
assert ours["wrong_accesses"] == 0, ours
' || fail "the table of bench frag is not as expected: $output"
# A trace's name may hold dots.
cp "$scratch/trace.csv" "$scratch/a1.5-b+c.csv"
gzip "$scratch/a1.5-b+c.csv"
expect 0 "$moonbright" bench frag "$scratch/a1.5-b+c.csv.gz" --policies tf-bfc
expect_text "a1.5-b+c "
expect 2 "$moonbright" bench frag "$scratch/trace.csv" --policies moonbrite
expect_text "there is no such policy"
expect 2 "$moonbright" bench frag "$scratch/trace.csv" --policies torch-caching --streams 1
expect 2 "$moonbright" bench frag "$scratch/none.csv"

# The bundled traces, with a model that is checked in full elsewhere.
expect 0 "$moonbright" bench frag --policies torch-caching
expect_text "PyTorch, default (measured)"
echo "models: passed"
