#!/usr/bin/env bash
# moonbright-kv: a slice of each trace on every cache, the experiments, and wrong input. With «full»: whole traces.
#
#     test_sim.sh PROGRAM DATA [full]
set -euo pipefail
if [ "${MB_SANITIZE-}" = thread ]; then
    echo "SKIP: moonbright-kv: a program of one thread, in which ThreadSanitizer finds nothing; the other builds run it"
    exit 77
fi
program=$1 data=$2 full=${3-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check FILE PYTHON: the lines of FILE as `rows`; every assertion must hold.
check() {
    python3 - "$1" "$2" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
assert rows, "no line"
by = {(row.get("model"), row.get("cache")): row for row in rows}
exec(sys.argv[2])
PYTHON
}

serve='
for row in rows:
    assert row["figures"] == "model" and row["refused"] == 0, row
    assert row["requests"] == wanted and row["seconds"] > 0, row
    assert 0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"] and 0 < row["tpot_p50_ms"] <= row["tpot_p99_ms"], row
    assert 0.5 < row["memory_efficiency"] <= 1 and 0 <= row["hit_share"] < 1, row
for model in {row["model"] for row in rows}:
    ours, vmm, paged = (by[model, cache] for cache in ("moonbright", "cuda-vmm", "paged-16"))
    # The same cache and the same decisions; mappings on the driver cost more, with block tables nothing.
    assert ours["mapping_share"] < vmm["mapping_share"] and paged["mapping_share"] == 0, (ours, vmm, paged)
    assert by[model, "concat"]["hit_share"] == 0 < by[model, "concat"]["moving_share"]
'

if [ "$full" = full ]; then
    "$program" serve "$data/mooncake-conversation.jsonl.gz" --stretch 6 --model llama-3-8b >"$scratch/moon"
    check "$scratch/moon" "wanted = 12031$serve"
    check "$scratch/moon" 'assert by["llama-3-8b", "moonbright"]["hit_share"] > 0.03, rows'
    "$program" serve "$data/azure-llm-conv-2023.csv.gz" --model llama-3-8b >"$scratch/conv"
    check "$scratch/conv" "wanted = 19366$serve"
    "$program" serve "$data/azure-llm-code-2023.csv.gz" --model llama-3-8b >"$scratch/code"
    check "$scratch/code" "wanted = 8819$serve"
    exit
fi

"$program" serve "$data/mooncake-conversation.jsonl.gz" --requests 60 >"$scratch/moon"
check "$scratch/moon" "wanted = 60$serve"
check "$scratch/moon" 'assert len(rows) == 12 and by["llama-2-7b", "moonbright"]["hit_share"] > 0'
"$program" serve "$data/azure-llm-code-2023.csv.gz" --requests 200 --model llama-3-8b --commit me >"$scratch/code"
check "$scratch/code" 'assert rows[0]["what"] == "run" and rows[0]["commit"] == "me" and len(rows) == 5'
# A server that refuses everything has no shares of anything, and numbers all the same.
printf '2023-11-16 18:17:03.97,4000000,1\n' >"$scratch/large"
"$program" serve "$scratch/large" --model llama-3-8b >"$scratch/refused"
check "$scratch/refused" '
for row in rows:
    assert row["refused"] == 1 and row["busy"] == row["mapping_share"] == row["moving_share"] == 0, row'
# The same input is the same output.
"$program" beam --model llama-3-8b --cache moonbright >"$scratch/beam1"
"$program" beam --model llama-3-8b --cache moonbright >"$scratch/beam2"
cmp "$scratch/beam1" "$scratch/beam2"
check "$scratch/beam1" 'assert all(0 < row["copies"] <= row["width"] * row["batch"] * row["steps"] for row in rows)'
"$program" prefix --model llama-3-8b >"$scratch/prefix"
check "$scratch/prefix" '
assert len(rows) == 4 * 24
for row in rows:
    assert row["hit"] <= row["tokens"] * row["share"] and row["ttft_ms"] >= row["compute_ms"], row
    assert row["cache"] == "concat" or row["hit"] > row["tokens"] * row["share"] - 16, row'
"$program" attach --samples 3 >"$scratch/attach"
check "$scratch/attach" '
row = rows[0]
assert row["batches"] == 1 and row["operations"] == 1 and row["pages"] == 1024, row
# The model is the same every time; a kernel behind the mappings ends after them, and costs its floor besides.
assert row["until_used_us"] == row["until_used_least_us"] > row["until_complete_us"] > 0, row
assert 0 < row["floor_used_us"] < row["until_used_us"] and row["floor_complete_us"] <= row["floor_used_us"], row
assert abs(row["added_used_us"] - (row["until_used_us"] - row["floor_used_us"])) < 0.02, row
assert 0 < row["host_deciding_us"] < row["host_us"] and 0 < row["host_sync_us"] < row["host_us"], row'
# So many rounds that memory is there for what they take, and not only at first.
# In builds with assertions every batch is audited, by the square of its commands: 7B's step of 512 beams, four times
# 8B's, takes a minute with a sanitizer on top, and is left to the other builds.
models=() count=2
[ -z "${MB_SANITIZE-}" ] || models=(--model llama-3-8b) count=1
"$program" host --samples 40 "${models[@]}" >"$scratch/host"
check "$scratch/host" '
assert len(rows) == '"$count"' * (17 + 4) and len({(row["model"], row["call"]) for row in rows}) == len(rows), rows
for row in rows:
    if row["call"].startswith("beams_512"):
        # Of 512 beams a part goes on behind another one; 7B has four ranges, each with a copy of its own.
        assert 16 * 50 < row["copies"] / {"llama-2-7b": 4, "llama-3-8b": 1}[row["model"]] < 16 * 512, row
        assert row["rounds"] == 16, row
    else:
        assert row["blocks"] == {"llama-2-7b": 256, "llama-3-8b": 1024}[row["model"]] and row["rounds"] == 40, row
    nothing = row["call"] == "beams_512_append_copy"  # a step at the start of a block has no tails
    assert (0 < row["least_us"] or nothing) and row["least_us"] <= row["median_us"] > 0, row'

# wrong STATUS WORD ARGUMENTS...
wrong() {
    local status=0
    "$program" "${@:3}" >"$scratch/out" 2>&1 || status=$?
    if [ "$status" != "$1" ] || ! grep -q -- "$2" "$scratch/out"; then
        echo "moonbright-kv ${*:3}: status $status: $(cat "$scratch/out")"
        exit 1
    fi
}
wrong 2 'no such command' sing
wrong 2 'wants a trace' serve
wrong 2 'cannot be read: No such file' serve "$scratch/missing"
wrong 2 'no model' beam --model gpt-9
wrong 2 'not known' beam --cache fog
wrong 2 'no option' beam --colour red
wrong 2 'a number from' serve x --stretch -1
wrong 1 '64 tokens are the least' host --model llama-2-7b --bytes 2097152 --samples 1
wrong 1 'have smaller chunks' attach --config backend:sim,device_memory:64m --samples 1
wrong 1 'MB_ERR_CONFIG: config:' attach --config nonsense
printf '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1]}\n' >"$scratch/short"
wrong 2 'line 1 is no request' serve "$scratch/short"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,x,1\n' >"$scratch/azure"
wrong 2 'line 2 is no request' serve "$scratch/azure"
# What would be ignored is refused, and so is what is not there to its end.
wrong 2 'is for serve, not for prefix' prefix --stretch 2
wrong 2 'is for attach host, not for beam' beam --samples 2
wrong 2 'is a model of 4 GPUs; allowed are llama-2-7b and llama-3-8b' host --model llama-3-70b
wrong 2 'one word too many' prefix trace.csv
wrong 2 'one word too many' serve a b
wrong 2 'wants a value' beam --seed
wrong 2 'holds no request' serve /dev/null
wrong 2 'Is a directory' serve "$scratch"
for line in '{"timestamp": 1e300, "input_length": 5, "output_length": 5, "hash_ids": [1]}' \
    '{"timestamp": nan, "input_length": 5, "output_length": 5, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 1e300, "output_length": 5, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": -1e300, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [-18446744073709551615]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [99999999999999999999]}' \
    '{"timestamp": "0", "input_length": 5, "output_length": 5, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5.5, "output_length": 5, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": null, "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": , "hash_ids": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1 2]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1,]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": 1, "other": [1]}' \
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]} more' \
    '{"input_length": 5, "output_length": 5, "hash_ids": [1]}' '{}' '[]' '' \
    '2023-11-16 18:17:03.97,5,1more' '2023-11-16 18:17:03.97,5,-4294967295' '2023-11-16 18:17:03.97,5' \
    '2023-11-16 18:17:03.97,4294967301,1' '2023-99-16 18:17:03.97,5,1' '2023-11-16T18:17:03.97,5,1' \
    '2023-11-16 18:17:03.97,4294967295,1' '2023-11-16 99:17:03.97,5,1'; do
    printf '%s\n' "$line" >"$scratch/odd"
    wrong 2 'line 1 is no request' serve "$scratch/odd"
done
printf '2023-11-16 18:17:03.97,5,1\n2023-11-16 18:17:02.97,5,1\n' >"$scratch/back"
wrong 2 'line 2 is no request' serve "$scratch/back"
# A file that ends early, between two lines as well.
python3 - "$scratch" <<'PYTHON'
import sys, zlib
lines = b"2023-11-16 18:17:03.97,5,1\n" * 50
pack = zlib.compressobj(wbits=31)
whole = pack.compress(lines) + pack.flush(zlib.Z_SYNC_FLUSH)
open(sys.argv[1] + "/cut.gz", "wb").write(whole)
PYTHON
wrong 2 'after line 50' serve "$scratch/cut.gz"
# Damage is told as damage, and not as a line that it made wrong.
head -c 100000 "$data/mooncake-conversation.jsonl.gz" >"$scratch/cut.gz"
wrong 2 'unexpected end of file' serve "$scratch/cut.gz"
python3 - "$data/azure-llm-code-2023.csv.gz" "$scratch/bad.gz" <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[len(data) // 2] ^= 255
open(sys.argv[2], "wb").write(data)
PYTHON
wrong 2 'bad.gz: after line' serve "$scratch/bad.gz"
head -c 70000 /dev/zero | tr '\0' 7 >"$scratch/long"
wrong 2 'line 1 has more than' serve "$scratch/long"
# A pipe, other ends of lines, blanks and keys in another order are as good.
mkfifo "$scratch/pipe"
printf '{"hash_ids" :[ 1 ,2 ] , "output_length":5,"other": {"a": [0]}, "input_length":700 ,"timestamp":0.5 }\r\n' >"$scratch/pipe" &
"$program" serve "$scratch/pipe" --model llama-3-8b --cache moonbright >"$scratch/piped"
wait
check "$scratch/piped" 'assert len(rows) == 1 and rows[0]["requests"] == 1 and rows[0]["refused"] == 0, rows'
# A full disk is no success; what goes into JSON is quoted.
if "$program" prefix --model llama-3-8b --cache concat >/dev/full 2>"$scratch/err"; then
    echo "a full disk was not noticed"
    exit 1
fi
grep -q 'writing the output failed' "$scratch/err"
"$program" attach --samples 1 --commit 'a"b\c' >"$scratch/quoted"
check "$scratch/quoted" 'assert rows[0]["commit"] == "a\"b\\c", rows'
