#!/usr/bin/env bash
# The five recorded traces are served without one wrong access or failed request, and a wrong one would be seen.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# What the traces themselves ask for at most: calculated from the files by other means than the command.
declare -A peak=([densenet161]=19639463024 [gpt2]=23497078088 [llama-generate-beam4]=5957435469
    [llama-recompute]=18879370496 [moe-offload-recompute]=4993566216)

for trace in densenet161 gpt2 llama-recompute moe-offload-recompute; do
    run 0 replay "$TORCH/$trace.csv.gz" --backend sim --verify --json
    json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["ok"] and r["ranges_read"] > 100000'
    json "r['peak_allocated_bytes'] == ${peak[$trace]}"
    json 'r["peak_reserved_bytes"] < r["recorded_peak_reserved_bytes"]'
done
run 0 replay "$TORCH/llama-generate-beam4.csv.gz" --backend sim --json
json "r['peak_allocated_bytes'] == ${peak[llama-generate-beam4]} and r['ok']"
run 0 replay "$TORCH/gpt2.csv.gz" --backend sim --json --verify --seed 3
json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["ok"]'
run 0 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --json --verify --seed 4 --streams 4
json 'r["wrong_accesses"] == 0 and r["failed_requests"] == 0 and r["streams"] == 4 and r["stream_waits"] > 1000'

# Host memory: the software GPU keeps only what is touched.
if [ -z "${MB_SANITIZE:-}" ]; then
    python3 - "$MOONBRIGHT" "$TORCH/gpt2.csv.gz" <<'EOF' || fail "memory: see above"
import resource, subprocess, sys
subprocess.run([sys.argv[1], "replay", sys.argv[2], "--backend", "sim", "--verify"], stdout=subprocess.DEVNULL, check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
if peak >= 1024:
    sys.exit(f"    {peak} MiB")
EOF
    passed=$((passed + 1))
fi

# A write that never happens has to be found: every 5,000th fill is dropped on its way into the library.
cat >"$WORK/lossy.c" <<'EOF'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

int mb_fill_async(void *dev, void *va, uint64_t bytes, uint64_t seed, void *stream)
{
    static int (*real)(void *, void *, uint64_t, uint64_t, void *);
    static unsigned calls;

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "mb_fill_async");
    return ++calls % 5000 ? real(dev, va, bytes, seed, stream) : 0;
}
EOF
if [ -n "${MB_SANITIZE:-}" ]; then
    echo "note: no interposed library under a sanitizer; the plain build runs that case"
elif "${MB_CC:-cc}" -shared -fPIC -o "$WORK/lossy.so" "$WORK/lossy.c" -ldl; then
    LD_PRELOAD=$WORK/lossy.so run 1 replay "$TORCH/moe-offload-recompute.csv.gz" --backend sim --verify --json
    json 'r["wrong_words"] > 0 and r["wrong_accesses"] >= r["wrong_words"] and not r["ok"]'
    says err "wrong words"
else
    fail "the interposed library was not built"
fi
finish
