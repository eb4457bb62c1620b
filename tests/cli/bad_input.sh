#!/usr/bin/env bash
# Whatever a file holds, the command ends with 0, 1 or 2; what is wrong is named with its place and status 2.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# expect NAME TEXT: the corpus file is refused and the message contains its name, the place and the text.
expect() {
    run 2 replay "$CORPUS/$1" --backend sim && says err "$CORPUS/$1:$2"
}

expect trace_torch/double_free "3: block 0x1 is freed a second time; expected one free"
expect trace_torch/double_alloc "2: block 0x1 is allocated again while it is live, allocated at line 1"
expect trace_torch/wrong_size "2: block 0x1 is freed with 16 bytes; expected the 8"
expect trace_torch/negative '1: the size is "-8"; expected a whole number'
expect trace_torch/overflow_id '1: the id is "18446744073709551616"'
expect trace_torch/huge_size "2: the size is 281474976710657 bytes; expected at most"
expect trace_torch/unknown_op '2: the operation is "z"; expected a (allocate)'
expect trace_torch/few_fields "1: the line has fewer than 4 fields"
expect trace_torch/many_fields "1: the line has more than 4 fields"
expect trace_torch/cut "2: the line has fewer than 4 fields"
expect trace_torch/long_line "1: the line is longer than 1024 bytes"
expect trace_torch/binary "1: the file begins with"
expect trace_rmm/bad_action '2: the action is "reallocate"'
expect trace_rmm/bad_pointer '2: the pointer is "0xzz"'
expect trace_rmm/double_free "4: block 0x1 is freed a second time"
expect trace_rmm/null_not_zero '2: the pointer is "0x0"'
expect trace_snapshot/attack "offset "
says err "the opcode STACK_GLOBAL is refused"
expect trace_snapshot/attack_protocol_0 "offset 0: the opcode GLOBAL is refused"
expect trace_snapshot/attack_inside "offset "
expect trace_snapshot/sets "offset "
expect trace_snapshot/cut "offset "
expect trace_snapshot/trailing "offset "
expect trace_snapshot/bad_frame "offset "
expect trace_snapshot/deep "offset 0: the pickle is no PyTorch memory snapshot"
expect trace_snapshot/memo_jump "offset 3: memo entry 4294967295 is far beyond"
expect trace_snapshot/no_events "offset 0: the snapshot holds no events"
expect trace_snapshot/wrong_types "event 0: the event is a int"
expect trace_snapshot/negative_size 'event 0: the event has no "size"'
expect trace_any/torch_gz_cut "10: the gzip data ends early"
expect trace_any/torch_gz_junk_behind "10: incorrect header check"
expect trace_any/bomb_zeros "1: the file begins with"
expect trace_any/empty "1: the file is empty"
expect trace_any/zip "1: the file begins with"
# A trace without an event says nothing: a mistake of whoever made it.
no_event() {
    printf "%b" "$2" >"$WORK/no_event.csv"
    run 2 replay "$WORK/no_event.csv" --backend sim --json --format "$1"
    says err "no_event.csv:$3"
    [ ! -s "$WORK/out" ] || fail "$2 printed a report"
}
no_event auto '# a comment\n\n# and another\n' "3: the file ends without an event"
no_event auto 'op,id,bytes,stream\n' "1: the file ends without an event"
no_event auto '\n\n' "1: the file begins with"
no_event torch-csv '\n\n' "2: the file ends without an event"
no_event auto '\xef\xbb\xbf' "1: the file is empty"
no_event auto 'Thread,Time,Action,Pointer,Size,Stream\n' "1: the file ends without an event"
run 2 replay "$CORPUS" --backend sim
says err "is a directory; expected a file"

# Every corpus file under every format: no crash, no other status.
for file in "$CORPUS"/trace_*/*; do
    for format in auto torch-csv rmm-csv torch-snapshot; do
        "$MOONBRIGHT" replay "$file" --backend sim --format $format --quiet >"$WORK/out" 2>"$WORK/err"
        status=$?
        case $status in
        0 | 1 | 2) passed=$((passed + 1)) ;;
        *) fail "$file as $format ended with $status: $(tail -3 "$WORK/err")" ;;
        esac
        if [ $status -ne 0 ] && [ ! -s "$WORK/err" ]; then
            fail "$file as $format: status $status without a message"
        fi
    done
done

# Ten million lines of comment, and a pickle of two hundred million marks: bounded memory.
if [ -z "${MB_SANITIZE:-}" ]; then
    python3 - "$WORK" <<'EOF'
import gzip, sys
with gzip.open(sys.argv[1] + "/lines.gz", "wb", compresslevel=1) as f:
    for _ in range(100):
        f.write(b"#\n" * 100000)
with gzip.open(sys.argv[1] + "/marks.gz", "wb", compresslevel=1) as f:
    for _ in range(200):
        f.write(b"(" * 1000000)
EOF
    for bomb in lines marks; do
        python3 - "$MOONBRIGHT" "$WORK/$bomb.gz" <<'EOF' || fail "$bomb: see above"
import resource, subprocess, sys
status = subprocess.run([sys.argv[1], "replay", sys.argv[2], "--backend", "sim"], stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE, check=False)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
if status.returncode != 2 or peak > 1400:
    sys.exit(f"    status {status.returncode}, {peak} MiB, {status.stderr[-300:]}")
EOF
        passed=$((passed + 1))
    done
fi
finish
