#!/usr/bin/env bash
# The `cuda` backend with driver tables, as the GPU scripts use it, on the fake libcuda: the contract, the benches of
# mapping, access of peers, allocations of 16 threads. Device tables must be refused there, by name.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
cd "$MB_SOURCE_DIR"
seem() {
    scripts/gpu-rehearse "$MB_BUILD_DIR" timeout 240 "$@"
}
case ${MB_SANITIZE-} in ?*) skip "the fake's libcuda is not built for sanitizers" ;; esac
status=0 && why=$(seem true) || status=$?
[ $status != 77 ] || skip "${why#SKIP: gpu-rehearse: }"
moonbright=$MB_BUILD_DIR/bin/moonbright

MB_GPU_TABLES=driver expect 0 seem "$MB_BUILD_DIR/tests/test_gpu_contract"
expect_text "0 failed"
for name in map unmap remap alias protect alloc; do
    expect 0 seem "$moonbright" bench $name --backend cuda --config tables:driver --samples 5 --sizes 2MiB,64MiB
    expect_text "driver "
done
expect 0 seem "$moonbright" bench beside --backend cuda --config tables:driver
expect 0 seem "$moonbright" bench driver --backend cuda --quick
# One device is no failure of what takes two, and is told; with two it runs; more than there are is bad input.
for devices in 1 2 3; do
    FAKE_CUDA_DEVICES=$devices expect 0 seem "$moonbright" bench all --backend cuda --only scale --quiet --json "$scratch/all.json"
    case $devices in
    1) expect_text "scale: not possible here: it takes 2 devices or more" ;;
    *) [ -z "$output" ] || fail "with $devices devices: $output" ;;
    esac
    python3 - "$scratch/all.json" $devices <<'PYTHON' || fail "the figures of $devices devices"
import json, sys
all, devices = json.load(open(sys.argv[1])), int(sys.argv[2])
told = [f for f in all["figures"] if f["experiment"] == "not run"]
most = max(f.get("x", 1) for f in all["figures"] if f["experiment"] == "scale" and f["kind"] == "measured") if devices > 1 else 1
# Both stock baselines stand beside the devices.
for way in "2 MB handles", "one handle":
    rows = {(f["what"], f["x"]) for f in all["figures"] if f["experiment"] == "scale" and f["how"] == f"threads: CUDA VMM, {way}"}
    assert devices == 1 or {("map 2 GB", devices), ("unmap 2 GB", devices)} <= rows, (way, rows)
assert devices == 1 or [s for s in all["side_by_side"] if s["what"] == "map 2 GB, two GPUs at once" and s["stock_other_way"]]
assert all["not_run"] == 0 and most == devices and len(told) == (devices == 1), (all["not_run"], most, told)
PYTHON
done
expect 2 seem "$moonbright" bench scale --backend cuda
expect_text "this machine has 1"
# gpu-report, in a tree of its own: says what is not possible, and its page and JSON name no path of the machine.
mkdir "$scratch/tree"
cp -r scripts "$scratch/tree/"
cp bench/results/h200-host.jsonl "$scratch/rows.jsonl"
COMMIT=abc ONLY=latency,scale QUICK=1 expect 0 seem "$scratch/tree/scripts/gpu-report" "$MB_BUILD_DIR" "$scratch/rows.jsonl"
expect_text "ok   latency"
expect_text "scale: not possible here"
grep -q "page/rows.jsonl" "$scratch/rows-all.json" || fail "the file is not in the page"
grep -q "latency.json" "$scratch/rows-all.html" || fail "latency is not in the page"
! grep -F -e "$scratch" -e "$MB_BUILD_DIR" "$scratch/rows-all.json" "$scratch/rows-all.html" || fail "a path of the machine"
FAKE_CUDA_DEVICES=2 expect 0 seem python3 -B tests/gpu/peers.py "$MB_BUILD_DIR/lib/libmoonbright.so" \
    backend:cuda,tables:driver,device_memory:2g
expect_text "6 checks passed, 0 failed"
expect 0 seem python3 -B tests/gpu/first.py "$MB_BUILD_DIR/lib/libmoonbright.so" backend:cuda,tables:driver
expect_text "5 checks passed, 0 failed"
expect 0 seem python3 -B tests/gpu/copy_list.py "$MB_BUILD_DIR/lib/libmoonbright.so" backend:cuda,tables:driver --stand-in
expect_text "9 checks passed, 0 failed"
"${CC:-cc}" -O2 -DSTRESS_MAIN -Iinclude tests/trust/stress.c -o "$scratch/stress" -L"$MB_BUILD_DIR/lib" -lmoonbright \
    -lpthread -Wl,-rpath,"$MB_BUILD_DIR/lib"
expect 0 seem "$scratch/stress" backend:cuda,tables:driver 2
expect_text ", 0 wrong"
expect 1 seem "$moonbright" bench map --backend cuda --config tables:inline --samples 5 --sizes 2MiB
expect_text "tables:inline is not possible"
# A GPU that is there but cannot be opened as asked is an error: never the software GPU instead.
expect 1 seem "$scratch/stress" tables:inline 1
expect_text "MB_ERR_NOT_FOUND: tables:inline is not possible" # its reason, not that of a backend asked after it
echo "PASS: slow_gpu_standin"
