#!/usr/bin/env bash
# `moonbright audit` on the log of a replay, whole, torn, damaged, and on what is no log.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

log=$WORK/log
run 0 replay "$TORCH/gpt2.csv.gz" --backend sim --config "audit:$log"
run 0 audit "$log"
says out "1 sessions, the last closed"
says out "0 refused"

# A frame and an address out of a mapping of the log must be found again.
run 0 audit "$log" --all
map=$(grep -m 1 "  map " "$WORK/out") || fail "the replay mapped nothing"
[[ $map =~ frame\ (0x[0-9a-f]+)\ at\ (0x[0-9a-f]+) ]] || fail "$map"
frame=${BASH_REMATCH[1]}
address=${BASH_REMATCH[2]}
run 0 audit "$log" --frame "$frame"
says out "map      frame $frame at $address"
says out "take     frame $frame"
says out "by mb_"
run 0 audit "$log" --va "$address"
says out "map      frame $frame at $address"
run 0 audit "$log" --va 0x10
says out "nothing in the log names it"

head -c $(($(stat -c %s "$log") - 30)) "$log" >"$WORK/torn"
run 0 audit "$WORK/torn"
says out "the last 98 bytes of the file are torn"
says out "not closed"
cp "$log" "$WORK/damaged"
printf 'x' | dd of="$WORK/damaged" bs=1 seek=300 conv=notrunc 2>/dev/null
run 1 audit "$WORK/damaged"
says err "byte 256 is damaged"

touch "$WORK/empty"
run 0 audit "$WORK/empty"
says out "the log is empty"
run 2 audit
run 2 audit "$log" "$log"
run 2 audit "$log" --frame x
says err "expected a frame number"
run 2 audit "$log" --all --va 1
says err "exclude each other"
run 2 audit "$WORK/none"
run 2 audit /dev/zero # which has no end
says err "it is no audit log"
run 2 audit "$TORCH/gpt2.csv.gz"
says err "it is no audit log"
finish
