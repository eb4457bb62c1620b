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

run 1 audit "$WORK/damaged" --all # what stands before the damage
says out "open"
says out "home"
says err "byte 256 is damaged"

# What was mapped when a process was killed: its log ends with whole records, here at many places, and with it an outcome
# may be missing. The command's answer is compared, page by page, with what follows from --all.
cat >"$WORK/mapped.py" <<'END'
import re
import sys

LINE = re.compile(r"pid \d+  (\w+) +frame (0x\w+) at (0x\w+)(?: and on, (\d+) bytes)?(?:, ([a-z -]+?))?, owner (\d+), (.*)")
PAGE = 2 << 20


def pages(text):
    for line in open(text):
        found = LINE.search(line)
        if not found:
            continue
        kind, frame, va, size, access, owner, rest = found.groups()
        for offset in range(0, int(size), PAGE):
            yield kind, int(va, 16) + offset, (int(frame, 16) << 12) + offset, access, int(owner), rest


def follow(text):
    at, unknown = {}, 0
    for kind, va, phys, access, owner, rest in pages(text):
        if "(refused" in rest:
            continue
        if "(planned" in rest:
            unknown += 1
        elif kind in ("home", "map"):
            at[va] = [kind, phys, access, owner]
        elif kind in ("homeless", "unmap"):
            del at[va]
        elif kind in ("take", "give"):
            at[va][3] = owner if kind == "take" else 0
        elif kind == "protect":
            at[va][2] = access
    return at, unknown


def shown(text):
    at, unknown = {}, 0
    for kind, va, phys, access, owner, rest in pages(text):
        if "(planned" in rest:
            unknown += 1
        else:
            assert va not in at, hex(va)
            at[va] = [kind, phys, access, owner]
    return at, unknown


wanted, got = follow(sys.argv[1]), shown(sys.argv[2])
assert wanted == got, (wanted[1], got[1], [(hex(va), wanted[0].get(va), got[0].get(va)) for va in sorted(set(wanted[0]) | set(got[0]))
    if wanted[0].get(va) != got[0].get(va)][:4])
print(len(got[0]), got[1])
END
records=$(($(stat -c %s "$log") / 128))
for part in 3 20 41 60 77 90 99; do
    at=$((records * part / 100))
    head -c $((at * 128)) "$log" >"$WORK/killed"
    run 0 audit "$WORK/killed" --all
    cp "$WORK/out" "$WORK/all"
    run 0 audit "$WORK/killed" --mapped
    says out "not closed: its process was killed, or is running"
    answer=$(python3 "$WORK/mapped.py" "$WORK/all" "$WORK/out" 2>"$WORK/why") || fail "at $part%: $(tail -n 1 "$WORK/why")"
    [ "${answer%% *}" -gt 0 ] || fail "nothing was mapped at $part%: $answer"
done
# Directly behind a plan.
map=$(grep -n -m 1 "  map " "$WORK/all" | cut -d: -f1)
head -c $((map * 128)) "$log" >"$WORK/killed"
run 0 audit "$WORK/killed" --mapped
says out "whether it was done is not known"
run 0 audit "$log" --mapped
says out "nothing is mapped: the last session was closed"

touch "$WORK/empty"
run 0 audit "$WORK/empty"
says out "the log is empty"
run 0 audit "$WORK/empty" --mapped
says out "the log is empty"
run 2 audit
run 2 audit "$log" "$log"
run 2 audit "$log" --frame x
says err "expected a frame number"
run 2 audit "$log" --all --mapped
run 2 audit "$log" --all --va 1
says err "exclude each other"
run 2 audit "$WORK/none"
run 2 audit /dev/zero # which has no end
says err "it is a device; a regular file is wanted"
run 2 audit "$TORCH/gpt2.csv.gz"
says err "it is no audit log"
finish
