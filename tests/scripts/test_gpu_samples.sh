#!/usr/bin/env bash
# scripts/gpu-samples without a GPU, a compiler and NVIDIA's code: stand-ins for the programs are packed, unpacked and run,
# each in a directory with what it reads. One that fails on the driver alone counts as not run, not as right.
# shellcheck source=tests/scripts/lib.sh
. "$MB_SOURCE_DIR/tests/scripts/lib.sh"
[ -e /proc/driver/nvidia/version ] && skip "this machine has a GPU: scripts/gpu-samples itself can be run"
samples=$MB_SOURCE_DIR/scripts/gpu-samples

mkdir "$scratch/built" "$scratch/bin"
while IFS='|' read -r directory _ _ _ files; do
    directory=${directory// /}
    mkdir -p "$scratch/tree/$directory"
    for file in $files; do
        mkdir -p "$(dirname "$scratch/tree/$directory/$file")"
        echo "content of $file" >"$scratch/tree/$directory/$file"
    done
    printf '#!/bin/sh\necho "sum 7"\n' >"$scratch/built/${directory##*/}"
done < <(grep -v '^#' "$MB_SOURCE_DIR/scripts/gpu-samples.manifest")
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/built/$1"
}
program dwtHaar1D 'cat data/signal.dat data/regression.gold.dat'
program clock 'echo "no library" >&2; exit 127'
# shellcheck disable=SC2016  # for the program
program scan 'case $MOONBRIGHT_PRELOAD in off*) echo "sum 7" ;; *) echo "sum 8" ;; esac'
chmod +x "$scratch"/built/*
count=$(find "$scratch/built" -type f | wc -l)

expect 1 "$samples" "$scratch/nowhere" --pack "$scratch/x.tar.xz"
expect_text "is it a tree of NVIDIA/cuda-samples?"
expect 0 "$samples" "$scratch/tree" --build "$scratch/built" --pack "$scratch/samples.tar.xz"
expect_text "$count of $count programs are built"
rm -r "$scratch/tree"

printf '#!/bin/sh\n%s\nexec "$@"\n' \
    'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && : >/proc/driver/nvidia/version || exit 99' \
    >"$scratch/seem"
chmod +x "$scratch/seem"
unshare --mount "$scratch/seem" true 2>/dev/null || skip "no mount namespace can be made here"
libc=$(ldd /bin/sh | awk '$1 ~ /^libc\.so/ { print $3 }') # a library that may be preloaded into anything
run() {
    expect "$1" env REPEATS=1 unshare --mount "$scratch/seem" "$samples" "$scratch/samples.tar.xz" --build "$scratch/run" \
        --library "$libc" --out "$scratch/out.jsonl"
}
run 1
expect_text "not run: clock fails on the driver: no library"
[[ $output =~ scan\ +NO ]] || fail "a program that is wrong is not told: $output"
[[ $output =~ dwtHaar1D\ +yes ]] || fail "a program does not find what it reads: $output"
python3 - "$scratch/out.jsonl" "$count" <<'END' || fail "$(tail -1 "$scratch/out.jsonl")"
import json, sys
about, *rows, summary = map(json.loads, open(sys.argv[1], encoding="utf-8"))
assert about["what"] == "run" and about["gpu"] and about["driver"] and about["time"]
count = int(sys.argv[2])
assert len(rows) == count and summary["fail_on_the_driver"] == ["clock"]
assert (summary["programs"], summary["right"]) == (count - 1, count - 2)
END

# Without the wrong one all is right; with none that runs, nothing is.
cp "$scratch/run/template" "$scratch/built/scan"
tar -cJf "$scratch/samples.tar.xz" -C "$scratch/built" scan clock
rm -r "$scratch/run"
run 0
tar -cJf "$scratch/samples.tar.xz" -C "$scratch/built" clock
rm -r "$scratch/run"
run 1
echo "PASS: gpu_samples"
