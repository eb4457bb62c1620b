#!/usr/bin/env bash
# `moonbright replay --model mi210 --verify` on every trace of data/rocm, in the order of calls and in drawn orders: no
# word and no access may be wrong. The traces are what make-traces writes. Not run on AMD hardware.
set -euo pipefail

moonbright=$1
"$MB_SOURCE_DIR/data/rocm/make-traces" --check

traces=("$MB_SOURCE_DIR"/data/rocm/*.csv)
[ ${#traces[@]} -ge 20 ] || { echo "FAILED: only ${#traces[@]} traces"; exit 1; }
for options in "" "--seed 7" "--streams 4 --seed 11"; do
    # shellcheck disable=SC2086 # options are words
    out=$("$moonbright" replay "${traces[@]}" --backend sim --model mi210 --verify --json --quiet $options)
    python3 -c '
import json, sys

bad = done = 0
order = sys.argv[2] or "in the order of the calls"
for line in sys.stdin:
    r = json.loads(line)
    done += 1
    if not r["ok"] or r["wrong_words"] or r["wrong_accesses"] or r["faults"] or r["failed_requests"]:
        print("FAILED:", r["trace"], r["problem"])
        bad += 1
print(f"{done} traces replayed ({order}), {bad} wrong")
sys.exit(bad > 0 or done != int(sys.argv[1]))' ${#traces[@]} "$options" <<<"$out"
done
