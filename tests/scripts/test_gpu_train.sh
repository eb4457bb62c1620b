#!/usr/bin/env bash
# scripts/gpu-train without a GPU: with two GPUs each workload runs on one of them, once, and the results are one file
# afterwards, also if it is stopped; with one GPU nothing is divided. A stand-in for python writes down what it is
# asked for, in a mount namespace where the driver seems to be loaded.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
[ -e /proc/driver/nvidia/version ] && skip "this machine has a GPU: scripts/gpu-train itself can be run"

mkdir -p "$scratch"/{scripts,bin,ready/lib}
cp "$MB_SOURCE_DIR"/scripts/gpu-{train,torch,lib.sh} "$scratch/scripts/"
cd "$scratch"
echo abc1234 >ready/commit
# study.py ACTION FILE --workloads A,B: a line for each; «hang» makes the search for a ceiling last.
cat >bin/python <<'PYTHON'
#!/usr/bin/env bash
action=$2 file=$3 workloads=
while [ $# -gt 1 ]; do
    [ "$1" != --workloads ] || workloads=$2
    shift
done
echo "$action GPU ${CUDA_VISIBLE_DEVICES-none} ${MOONBRIGHT-none} $workloads" >>asked
[ "$action" != report ] || exit 0
for workload in ${workloads//,/ }; do
    echo "{\"action\":\"$action\",\"workload\":\"$workload\"}" >>"$file"
done
[ "$action" != ceiling ] || [ ! -e hang ] || sleep 600
PYTHON
cat >bin/nvidia-smi <<'SMI'
#!/bin/sh
seq "$GPUS"
SMI
printf '#!/bin/sh\n%s\nexec "$@"\n' \
    'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && : >/proc/driver/nvidia/version || exit 99' >bin/seem
chmod +x bin/*
unshare --mount bin/seem true 2>/dev/null || skip "no mount namespace can be made here"
seem=(env MB_GPU_READY=ready "PATH=$scratch/bin:$PATH" "PYTHON=$scratch/bin/python" OUT= MOONBRIGHT=history:1
    unshare --mount bin/seem)

echo '{"action":"before"}' >study.jsonl
expect 0 env GPUS=2 "${seem[@]}" scripts/gpu-train study.jsonl
expect_text "GPU 1: ok   study"
for gpu in 0 1; do
    [ "$(grep -c "GPU $gpu history:1,force:yes" asked)" = 2 ] || fail "GPU $gpu was asked for: $(cat asked)"
done
grep -q '^report GPU none' asked || fail "there was no report: $(cat asked)"
# All workloads that the study knows, each on one GPU, and those with a ceiling on different ones.
python3 -B - "$MB_SOURCE_DIR/integrations/torch/study" <<'END' || fail "divided otherwise: $(cat study.jsonl asked)"
import json, sys
sys.path.insert(0, sys.argv[1])
from study import WORKLOADS as known
rows = [json.loads(line) for line in open("study.jsonl", encoding="utf-8")]
assert rows[0] == {"action": "before"} and rows.count(rows[0]) == 1
for action in ("run", "ceiling"):
    assert sorted(r["workload"] for r in rows if r["action"] == action) == sorted(known), action
shares = [line.split()[-1].split(",") for line in open("asked", encoding="utf-8") if line.startswith("ceiling")]
assert sorted("gpt2" in s for s in shares) == sorted("ragged-transformer" in s for s in shares) == [False, True]
assert not any("gpt2" in s and "ragged-transformer" in s for s in shares)
END
[ "$(ls study*)" = study.jsonl ] || fail "parts were left: $(ls study*)"

: >asked
expect 0 env GPUS=1 "${seem[@]}" scripts/gpu-train one.jsonl
[ "$(tr '\n' ';' <asked)" = "run GPU none history:1 ;ceiling GPU none history:1 ;report GPU none history:1 ;" ] ||
    fail "one GPU was asked for: $(cat asked)"

# Stopped while both search: the results are joined, and what was started is gone.
touch hang
GPUS=2 "${seem[@]}" scripts/gpu-train stopped.jsonl >told 2>&1 &
train=$!
trap '[ -z "$train" ] || kill $train; rm -rf "$scratch"' EXIT # also when this fails
until [ "$(cat stopped-gpu?.jsonl 2>/dev/null | grep -c ceiling)" = 7 ]; do # the test's own time limit ends this
    kill -0 $train || fail "it has ended: $(cat told)"
    sleep 0.1
done
kill -TERM $train
status=0
wait $train || status=$?
train=
[ $status -ne 0 ] || fail "what was stopped passes: $(cat told)"
[ "$(grep -c . stopped.jsonl)" = 14 ] || fail "not joined: $(cat stopped.jsonl)"
echo "PASS: gpu_train"
