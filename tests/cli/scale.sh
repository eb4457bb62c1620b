#!/usr/bin/env bash
# bench scale on software GPUs: what the model says stays within what two H200 were measured to do; and the programs of
# tests/gpu that run on software GPUs as well.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

run 0 bench scale --backend sim --devices 2 --samples 3 --one-device --json --commit abc
json 'r["commit"] == "abc" and all(row["modelled"] for row in r["rows"])'
json '{row["what"] for row in r["rows"]} == {"map x1", "map x2", "unmap x1", "unmap x2"}'
# Times as long as alone: 52-53 of 30.9 ms in processes, 67 and 84 in threads, 60-61 sharing one GPU.
json 'all(1.65 < row["value"] < 1.75 for row in r["rows"] if row["what"] == "map x2" and row["how"].startswith("processes: CUDA"))'
json 'all(2.1 < row["value"] < 2.8 for row in r["rows"] if row["what"] == "map x2" and row["how"].startswith("threads: CUDA"))'
json 'all(1.9 < row["value"] < 2.0 for row in r["rows"] if row["what"] == "map x2" and row["how"].startswith("sharing one device: CUDA"))'
json 'len([row for row in r["rows"] if "CUDA" in row["how"]]) == 12'
# One handle is measured on GPUs; of its sharing the model knows nothing and says nothing.
json 'not any("one handle" in row["how"] for row in r["rows"])'
json 'all(row["value"] <= 1.1 for row in r["rows"] if row["how"] in ("threads: simulated", "processes: simulated"))'
run 0 bench scale --backend sim --devices 8 --threads --samples 2 --size 64MiB --no-vendor --json
json 'len(r["rows"]) == 16 and not any("processes" in row["how"] for row in r["rows"])'
run 0 bench scale --backend sim --devices 3 --processes --samples 2 --size 64MiB
says out "processes: CUDA VMM, 2 MB handles"
says out "«modelled»"
run 1 bench scale --backend sim --devices 2 --config device_memory:64m
says err "device 0 of 1, processes"
run 2 bench scale --devices 9
says err "1 to 8 devices"
run 2 bench scale --devices 0
run 2 bench scale --size 3KiB
run 2 bench scale now

# Device tables do not share a device: no row may say that they do.
run 2 bench scale --backend sim --one-device --config tables:isolated
says err "device tables do not share a device"

# Whoever ends the command ends its processes, however: those at the barrier would wait for ever.
lives() { # pid: it runs, and is not only waiting to be counted by whoever inherited it
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    [[ ${stat##*) } != [ZX]* ]]
}
"$MOONBRIGHT" bench scale --backend sim --devices 2 --processes --samples 1000 --no-vendor >/dev/null 2>&1 &
command=$!
stopped=
for _ in $(seq 3000); do
    read -r child _ <"/proc/$command/task/$command/children" || true
    # With a thread of its own it has begun, and asked for its end with the command's; stopped, it will not end by itself.
    if [ -n "${child:-}" ] && [ -e "$(printf '%s\n' "/proc/$child/task/"*/ | sed -n 2p)" ] && kill -STOP "$child" 2>/dev/null; then
        stopped=$child
        break
    fi
    sleep 0.01
done
kill -KILL "$command"
wait "$command" 2>/dev/null
[ -n "$stopped" ] || fail "the command made no process"
for _ in $(seq 3000); do
    { [ -n "$stopped" ] && lives "$stopped"; } || break
    sleep 0.1
done
if [ -n "$stopped" ] && lives "$stopped"; then
    kill -KILL "$stopped"
    fail "a process outlives its command"
fi

library=$(dirname "$MOONBRIGHT")/../lib/libmoonbright.so
if [ -n "${MB_SANITIZE:-}" ]; then
    echo "note: python3 cannot load a library with a sanitizer; the plain build runs the programs of tests/gpu"
elif [ -e "$library" ]; then
    if python3 -B "$SOURCE/tests/gpu/peers.py" "$library" backend:sim,device_memory:256m >"$WORK/out" 2>&1; then
        says out "PASS: peers"
    else
        fail "tests/gpu/peers.py: $(tail -3 "$WORK/out")"
    fi
    if python3 -B "$SOURCE/tests/gpu/first.py" "$library" backend:sim,driver_home:yes >"$WORK/out" 2>&1; then
        says out "PASS: first"
    else
        fail "tests/gpu/first.py: $(tail -3 "$WORK/out")"
    fi
    if python3 -B "$SOURCE/tests/gpu/copy_list.py" "$library" backend:sim >"$WORK/out" 2>&1; then
        says out "PASS: copy_list"
    else
        fail "tests/gpu/copy_list.py: $(grep -m1 '^seed: ' "$WORK/out"); $(tail -3 "$WORK/out")"
    fi
fi
finish
