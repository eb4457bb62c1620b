#!/usr/bin/env bash
# A FIFO that nobody writes to, a device or a directory in place of a file is refused at once, and named; pipes are read.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# A guard against hanging only.
MOONBRIGHT="timeout 120 $MOONBRIGHT"
run() {
    local want=$1 got
    shift
    $MOONBRIGHT "$@" >"$WORK/out" 2>"$WORK/err" </dev/null
    got=$?
    [ "$got" -eq "$want" ] || fail "moonbright $* ended with $got, expected $want"
    passed=$((passed + 1))
}

fifo=$WORK/fifo
mkfifo "$fifo" || exit 1
run 0 replay "$TORCH/gpt2.csv.gz" --backend sim --quiet --events 50 --config "audit:$WORK/log"
run 0 probe --backend sim -o "$WORK/profile"
run 0 bench map --backend sim --sizes 2MiB --samples 2 --json
cp "$WORK/out" "$WORK/map.json"

# each KIND PATH TEXT: every command that reads a file.
each() {
    run 2 audit "$2" && says err "it is a $1; a regular file is wanted"
    run 2 replay "$2" --backend sim && says err "$2: is a $3; expected a file"
    run 2 bench frag "$2" && says err "is a $3; expected a file"
    run 2 map "$2" -o "$WORK/page.html" && says err "is a $3; expected a file"
    run 2 bench compare "$WORK/map.json" "$2" && says err "is a $3; expected a file"
    run 2 bench all --no-run --json - --include "$2" && says err "is a $3; expected a file"
    run 1 replay "$TORCH/gpt2.csv.gz" --backend sim --events 9 --config "profile:$2" && says err "it is a $1; a regular file is wanted"
}
each "FIFO or a pipe" "$fifo" FIFO
each device /dev/zero device
each directory "$WORK" directory

# The audit log and the profile are read more than once or as a whole; all else may come through a pipe.
trace=$WORK/trace.csv
zcat "$TORCH/gpt2.csv.gz" >"$trace"
for from in "-" /dev/stdin; do
    head -50 "$trace" | $MOONBRIGHT replay $from --backend sim --quiet >/dev/null || fail "replay $from behind a pipe"
    $MOONBRIGHT replay $from --backend sim --quiet --events 50 <"$trace" >/dev/null || fail "replay $from from a file"
done
$MOONBRIGHT replay <(sleep 0.2; head -50 "$trace") --backend sim --quiet >/dev/null || fail "replay of a pipe that is filled later"
$MOONBRIGHT bench compare <(cat "$WORK/map.json") <(cat "$WORK/map.json") >/dev/null || fail "bench compare of two pipes"
$MOONBRIGHT bench compare - "$WORK/map.json" < <(cat "$WORK/map.json") >/dev/null || fail "bench compare - FILE"
$MOONBRIGHT audit /dev/stdin <"$WORK/log" >/dev/null || fail "audit of standard input that is a file"

finish
