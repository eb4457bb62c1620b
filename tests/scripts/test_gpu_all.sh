#!/usr/bin/env bash
# scripts/gpu-all without a GPU: its own script beside stand-ins for the steps, in a mount namespace where the driver
# seems to be loaded. A step that hangs is ended with what it left running, the next one runs, and what was written up
# to then is there; a stage that is stopped from outside leaves its results too.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
all=$MB_SOURCE_DIR/scripts/gpu-all
[ -e /proc/driver/nvidia/version ] && skip "this machine has a GPU: scripts/gpu-all itself can be run"
expect 77 "$all" --stage right "$scratch/none"
expect_text "SKIP: gpu-all"
expect 2 "$all" --stage nothing "$scratch/none"
expect 2 "$all" --stage right --seconds

mkdir -p "$scratch"/tree/{scripts,ready/bin,cmake,include,src,kernels,cli,integrations,tests,bench} "$scratch/bin"
cp "$all" "$MB_SOURCE_DIR/scripts/gpu-lib.sh" "$scratch/tree/scripts/"
cd "$scratch/tree"
echo abc1234 >ready/commit
echo project >CMakeLists.txt
bash -c '. scripts/gpu-lib.sh; gpu_sources' >ready/sources
printf '#!/bin/sh\nexit 0\n' >ready/bin/moonbright
printf '#!/bin/sh\necho "usage: gputest NAME"\nexit 2\n' >ready/gputest
printf '#!/bin/sh\ncase $* in *name*) echo "NVIDIA H200";; esac\n' >"$scratch/bin/nvidia-smi"
# Ignores the end that timeout wants, and leaves a child in a group of its own.
cat >scripts/gpu-test <<'STEP'
#!/usr/bin/env bash
trap '' TERM
timeout 600 sleep 600 &
echo "$!" >left.pid
echo '{"what":"first"}' >"$RESULTS"
echo "budget $BUDGET commit $COMMIT ready $MB_GPU_READY" >"$OUT/told.txt"
while :; do sleep 1; done
STEP
cat >scripts/gpu-variants <<'STEP'
#!/usr/bin/env bash
echo '{"what":"second"}' >>"$2"
echo "verdict: default meets 4"
STEP
chmod +x ready/bin/moonbright ready/gputest "$scratch/bin/nvidia-smi" scripts/gpu-test scripts/gpu-variants
cat >"$scratch/seem" <<'SEEM'
#!/bin/sh
mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && echo stand-in >/proc/driver/nvidia/version || exit 99
exec "$@"
SEEM
chmod +x "$scratch/seem"
seem=(env GRACE=1 MB_GPU_READY=ready "PATH=$scratch/bin:$PATH" COMMIT= unshare --mount "$scratch/seem")
# expect_ended PID: soon. Nobody may have fetched its status yet.
expect_ended() {
    local line
    for _ in {1..600}; do
        read -r line 2>/dev/null <"/proc/$1/stat" || return 0
        [[ ${line##*) } != [ZX]* ]] || return 0
        sleep 0.1
    done
    fail "process $1 still runs"
}
unshare --mount "$scratch/seem" true 2>/dev/null || skip "no mount namespace can be made here"

# Shares of seconds instead of minutes, of the first step enough to write what is looked for.
sed -i 's/step gpu-test 340 60/step gpu-test 15 1/; s/step gpu-variants 180 30/step gpu-variants 200 1/' scripts/gpu-all
expect 1 "${seem[@]}" scripts/gpu-all --stage right --seconds 600 out
expect_text "FAIL gpu-test: status 137"
case $output in *ATTENTION*) fail "what was made of this tree is said to be of another" ;; esac
expect_text "was still there: ended"
expect_text "ok   gpu-variants"
expect_text "verdict: default meets 4"
expect_ended "$(cat left.pid)"
[ "$(cat out/right-cuda.json)" = '{"what":"first"}' ] || fail "the first step's result is not there"
[ "$(cat out/right-variants.jsonl)" = '{"what":"second"}' ] || fail "the second step's result is not there"
[ "$(find out -type f | wc -l)" -le 8 ] || fail "too many files: $(ls out)"
tar -xzf out/right-logs.tar.gz
grep -q "budget 7 commit abc1234 ready $PWD/ready" logs/told.txt || fail "the step was told: $(cat logs/told.txt)"
grep -q "some failed or were left out" out/gpu-all.txt || fail "gpu-all.txt has no end"

# Not enough time for the second: said, not run.
sed -i 's/step gpu-variants 200 1/step gpu-variants 20 10/' scripts/gpu-all
echo "changed" >>CMakeLists.txt
expect 1 "${seem[@]}" scripts/gpu-all --stage right --seconds 5 out2
expect_text "left out: gpu-variants"
expect_text "was not made of this tree"

# Stopped from outside, in the middle of a step: once that has written something.
sed -i 's/step gpu-test 15 1/step gpu-test 300 1/' scripts/gpu-all
rm -rf build/gpu-all
"${seem[@]}" scripts/gpu-all --stage right --seconds 600 out3 >told3.txt 2>&1 &
stage=$!
trap '[ -z "$stage" ] || kill $stage; rm -rf "$scratch"' EXIT # also when this fails
until [ -s build/gpu-all/right/cuda.json ]; do # the test's own time limit ends this
    kill -0 $stage || fail "the stage has ended: $(cat told3.txt)"
    sleep 0.1
done
kill -TERM $stage
status=0
wait "$stage" || status=$?
stage=
[ "$status" -ne 0 ] || fail "a stage that was stopped passes: $(cat told3.txt)"
[ "$(cat out3/right-cuda.json)" = '{"what":"first"}' ] || fail "nothing was saved when it was stopped"
expect_ended "$(cat left.pid)"
echo "PASS: gpu_all"
