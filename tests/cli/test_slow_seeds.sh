#!/usr/bin/env bash
# All five traces, several seeds, one stream and four: never a wrong access, always the same allocations.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

for seed in 1 2 3 $((RANDOM + 4)); do
    for streams in 0 4; do
        echo "seed $seed, streams $streams"
        run 0 replay "$TORCH"/*.csv.gz --backend sim --verify --json --seed $seed --streams $streams
        json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["ok"]'
        python3 - "$WORK/out" <<'EOF' >>"$WORK/peaks"
import json, sys
print([json.loads(line)["peak_allocated_bytes"] for line in open(sys.argv[1], encoding="utf-8")])
EOF
    done
done
[ "$(sort -u "$WORK/peaks" | wc -l)" -eq 1 ] || fail "peaks differ: $(sort -u "$WORK/peaks")"
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --verify --json --model a100 --device-memory 40GiB
json 'r["ok"]'
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --verify --json --model mi210 --device-memory 64GiB
json 'r["ok"]'
finish
