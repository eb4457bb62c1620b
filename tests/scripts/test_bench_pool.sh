#!/usr/bin/env bash
# bench_cuda_async on the fake libcuda: arguments, the probe's little language (marks show what memory a block has), a
# run with derived traces, its JSON and its log. The fake's pool holds nothing back, so what the pool says is not checked.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
case ${MB_SANITIZE-} in ?*) skip "the fake's libcuda is not built for sanitizers" ;; esac
bench=$MB_BUILD_DIR/bench/bench_cuda_async
[ -x "$bench" ] || skip "the benches are not built"
[ -e "$MB_BUILD_DIR/tests/fake-cuda/libcuda.so.1" ] || skip "the fake's libcuda is not built"
cd "$MB_SOURCE_DIR"

expect 2 "$bench" --json
expect_text "lacks its value"
expect 2 "$bench" --seconds 0
if [ ! -e /proc/driver/nvidia/version ]; then
    expect 77 env LD_LIBRARY_PATH="$scratch" "$bench" --check
    expect_text "SKIP: bench_cuda_async"
    expect 0 env LD_LIBRARY_PATH="$scratch" "$bench"
fi
export LD_LIBRARY_PATH=$MB_BUILD_DIR/tests/fake-cuda FAKE_CUDA_MEMORY=152000000000
expect 0 "$bench" --script "a A 4M 3; m A; f A.1; s; v A; b C 2M+1; w; g C; t 0; r 64M; S"
expect_text '"marks": ["A.0+0 x 2", "A.2+0 x 2"]'
expect_text '"complete": true'
expect 1 "$bench" --script "a A"
expect_text "which size?"
expect 1 "$bench" --script "q A 1M"
expect_text "unknown"
expect 1 "$bench" --script "a 1 1M"
expect_text "a name is A to Z"

mkdir "$scratch/traces" "$scratch/derived"
for name in densenet161 gpt2 llama-recompute moe-offload-recompute llama-generate-beam4; do
    printf 'a,1,1000,0\na,2,5000000,0\nf,1,1000,0\n' | gzip >"$scratch/traces/$name.csv.gz"
done
printf 'a,1,70000000,0\nf,1,70000000,0\n' | gzip >"$scratch/derived/other.csv.gz"
expect 0 "$bench" --all --commit abc --derived "$scratch/derived" --json "$scratch/pool.jsonl" \
    --log "$scratch/log.gz" "$scratch/traces"
python3 - "$scratch/pool.jsonl" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert lines[0]["what"] == "run" and lines[0]["commit"] == "abc"
probes = [line for line in lines if line["what"] == "probe"]
assert len(probes) > 100 and all(line["complete"] for line in probes)
assert len({line["script"] for line in probes}) == len(probes), "a question stands twice"
traces = [line for line in lines if line["what"] == "trace"]
assert len(traces) == 5 + 5 + 1 + 1 + 5 + 1 + 1, len(traces)
assert all(line["peak_allocated_bytes"] == (70000000 if line["derived"] else 5001000) for line in traces)
assert [line["calls"] for line in traces if line["derived"]] == [2, 2]
END
[ "$(zcat "$scratch/log.gz" | grep -c '^a,')" -eq 13 ] || fail "the log has other allocations: $(zcat "$scratch/log.gz")"
expect 1 "$bench" --json /dev/null/none
expect_text "cannot be written"
expect 1 "$bench" --all --derived "$scratch" "$scratch/traces"
expect_text "no *.csv.gz"
echo "PASS: bench_pool"
