# shellcheck shell=bash disable=SC2034
# What the tests of the command share. The command's path is the first argument of each test.
set -uo pipefail

MOONBRIGHT=${1:-${MB_MOONBRIGHT:?the path of the command is needed}}
SOURCE=${MB_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
CORPUS=$SOURCE/tests/fuzz/corpus
TORCH=$SOURCE/data/torch
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
unset MOONBRIGHT_DATA
passed=0
failed=0

fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

# run STATUS ARGUMENT...: runs the command with its output in $WORK/out and $WORK/err; the status has to be as given.
run() {
    local want=$1 got
    shift
    "$MOONBRIGHT" "$@" >"$WORK/out" 2>"$WORK/err" </dev/null
    got=$?
    if [ "$got" -eq "$want" ]; then
        passed=$((passed + 1))
        return 0
    fi
    fail "moonbright $* ended with $got, expected $want"
    sed 's/^/    /' "$WORK/out" "$WORK/err" | head -20
    return 1
}

# says FILE TEXT: $WORK/FILE has to contain TEXT, literally.
says() {
    if grep -qF -e "$2" "$WORK/$1"; then
        passed=$((passed + 1))
    else
        fail "no «$2» in the standard $1:"
        sed 's/^/    /' "$WORK/$1" | head -20
    fi
}

# json PYTHON-EXPRESSION: holds for every line of $WORK/out, each a JSON object `r`; there is at least one.
json() {
    if python3 - "$WORK/out" "$1" <<'EOF'; then
import json, sys
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
if not lines:
    sys.exit("    no output")
for line in lines:
    r = json.loads(line)
    if not eval(sys.argv[2]):
        sys.exit(f"    {line}")
EOF
        passed=$((passed + 1))
    else
        fail "JSON: not $1"
    fi
}

finish() {
    echo "CASES: $passed passed, $failed failed, 0 skipped"
    [ "$failed" -eq 0 ]
}
