#!/usr/bin/env bash
# scripts/bootstrap: quiet when nothing is missing; installs as root just what is; otherwise says what to type.
# Package tools are replaced by recorders on a PATH of its own, so that the test changes nothing.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

bootstrap=$MB_SOURCE_DIR/scripts/bootstrap
bin=$scratch/bin
mkdir "$bin"
tools=(make gcc g++ cmake ninja python3 git nm clang clang-format clang-tidy cppcheck shellcheck groff spin)
for tool in "${tools[@]}"; do
    ln -s /bin/true "$bin/$tool"
done
ln -s "$(command -v bash)" "$bin/bash"
recorder() {
    printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$bin/$1"
    chmod +x "$bin/$1"
}
# shellcheck disable=SC2016 # the text is for the recorder to expand
recorder pkg-config '[ "$*" != "--exists ${ABSENT-none}" ]'
# shellcheck disable=SC2016
recorder apt-get 'echo "$*" >>"$LOG"'
# shellcheck disable=SC2016
recorder id 'echo "$USER_ID"'

export LOG=$scratch/log USER_ID=0
run() {
    : >"$LOG"
    expect "$1" env PATH="$bin" "$bin/bash" "$bootstrap" "${@:2}"
}

run 0
[ -z "$output" ] || fail "said something with nothing missing: $output"
[ ! -s "$LOG" ] || fail "called apt-get with nothing missing"

rm "$bin/ninja"
ABSENT=cmocka run 0
grep -qx 'install -y -qq --no-install-recommends ninja-build libcmocka-dev' "$LOG" ||
    fail "did not install just what was missing: $(cat "$LOG")"

USER_ID=1000 ABSENT=cmocka run 1
expect_text "sudo apt-get install --no-install-recommends ninja-build libcmocka-dev"
[ ! -s "$LOG" ] || fail "called apt-get as a user"

# Optional tools: installed only on request, and no reason to fail.
ln -s /bin/true "$bin/ninja"
rm "$bin/cppcheck"
run 0
[ ! -s "$LOG" ] || fail "installed an optional tool unasked"
run 0 --check
grep -q 'install .* cppcheck' "$LOG" || fail "did not install cppcheck"
USER_ID=1000 run 0 --check
expect_text "cppcheck"

# No apt-get: names what is needed.
rm "$bin/apt-get" "$bin/cmake"
run 1
expect_text "cmake"
run 2 --other
