# shellcheck shell=bash
# Sourced by the tests of this directory: a scratch directory that goes away at the end, and failure texts.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

skip() {
    echo "SKIP: ${0##*/}: $*"
    exit 77
}

# expect STATUS COMMAND...: runs the command, whose output is then in $output.
expect() {
    local want=$1 got=0
    shift
    output=$("$@" 2>&1) || got=$?
    [ "$got" -eq "$want" ] || fail "«$*» ended with $got, not $want: $output"
}

# expect_text TEXT: $output contains it.
expect_text() {
    case $output in
    *"$1"*) ;;
    *) fail "«$1» is not in: $output" ;;
    esac
}
