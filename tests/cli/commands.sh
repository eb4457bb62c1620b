#!/usr/bin/env bash
# Help, version, info, and mistakes on the command line.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

run 0 help
says out "usage: moonbright COMMAND"
for command in info demo replay version help; do
    run 0 help
    says out "  $command "
    run 0 help "$command"
    says out "usage: moonbright $command"
done
run 0 --help
run 0 replay --help
says out "--verify"
run 0 version
grep -qE '^moonbright [0-9]+\.[0-9]+\.[0-9]+$' "$WORK/out" || fail "version: $(cat "$WORK/out")"
run 0 --version

run 2
says err "usage: moonbright"
run 2 reply
says err 'there is no command "reply"; did you mean replay?'
run 2 help nothing
run 2 help info demo
run 2 version 1
run 2 info extra
run 2 info --jsn
says err "there is no option --jsn"
says err "Did you mean --json? Try \`moonbright info --help\`."
run 2 demo trace.csv
run 2 replay
says err "no trace was given"
run 2 replay x --verify=most
says err '--verify is "most"; expected edges or full'
run 2 replay x --policy best
says err "moonbright-blocking"
run 2 replay x --format csv
run 2 replay x --streams 1
run 2 replay x --streams 65
run 2 replay x --device-memory plenty
says err "expected a size like 80GiB"
run 2 replay x --seed -3
run 2 replay x --seed
run 2 replay x --quiet=1

# The man page has an entry for every command and every bench, and names no other.
page=$SOURCE/doc/man/moonbright.1
run 0 help
commands=$(sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$WORK/out")
"$MOONBRIGHT" bench 2>&1 | sed -n '/^benches:/,/^$/s/^  \([a-z]*\) .*/\1/p' >"$WORK/benches"
sed -n '/^\.SH COMMANDS/,/^\.SH OPTIONS/p' "$page" | grep -A1 '^\.TP' | grep '^\.B' >"$WORK/entries"
if [ "$(wc -w <<<"$commands")" -lt 9 ] || [ "$(wc -l <"$WORK/benches")" -lt 9 ]; then fail "no list of commands"; fi
for name in $commands; do
    grep -qE "^\.B[RI]? \"?$name\b" "$WORK/entries" || fail "the man page has no entry for $name"
done
while read -r name; do
    grep -qE "^\\.B[RI]? \"?bench.*\\<$name\\>" "$WORK/entries" || fail "the man page has no entry for bench $name"
done <"$WORK/benches"
while read -r name; do
    grep -qxF "$name" <<<"$commands" || fail "the man page has an entry for $name, which is no command"
done < <(sed -E 's/^\.B[RI]? "?([a-z]+).*/\1/' "$WORK/entries" | sort -u)

# And for every option that a command's help tells, those of moonbright-kv in its own page.
# options FILE: the options that a help text tells.
options() {
    grep -oE '(^|[ ,|[])--?[a-z][a-z-]*' "$1" | tr -d ' ,|[' | sort -u
}
# in_page PAGE OPTION
in_page() {
    grep -qE -- "(^|[^a-z-])$2([^a-z-]|\$)" <(sed 's/\\-/-/g; s/\\fI/ /g; s/\\fR/ /g' "$1")
}
while read -r -a words; do
    "$MOONBRIGHT" "${words[@]}" --help >"$WORK/help"
    for option in $(options "$WORK/help"); do
        in_page "$page" "$option" || fail "the man page does not tell $option of ${words[*]}"
    done
done < <(for name in $commands; do [ "$name" = help ] || [ "$name" = bench ] || echo "$name"; done
    sed 's/^/bench /' "$WORK/benches")
in_page "$page" --no-such-option && fail "the check of options finds everything"
kv=$(dirname "$MOONBRIGHT")/moonbright-kv
if [ -x "$kv" ]; then
    "$kv" --help >"$WORK/help"
    for option in $(options "$WORK/help"); do
        in_page "$SOURCE/doc/man/moonbright-kv.1" "$option" || fail "moonbright-kv.1 does not tell $option"
    done
fi

# The error for an unknown key lists all that the page of the configuration tells, to the last.
if env MOONBRIGHT=no_such_key:1 "$MOONBRIGHT" info >"$WORK/out" 2>"$WORK/err"; then fail "an unknown key was taken"; fi
# shellcheck disable=SC2016  # the backquotes are the page's
grep -oE '^\| `[a-z_]+`' "$SOURCE/doc/configuration.md" | tr -d '|` ' >"$WORK/keys"
[ "$(wc -l <"$WORK/keys")" -gt 9 ] || fail "no list of keys"
while read -r key; do
    grep -qE "(are|,) $key(,|\$)" "$WORK/err" || fail "the error for an unknown key does not name $key"
done <"$WORK/keys"

run 0 info
says out "sim:"
run 0 info --json
python3 -m json.tool "$WORK/out" >/dev/null || fail "info --json is no JSON"
json 'sum(b["chosen"] for b in r["backends"]) == 1 and r["chosen"] in [b["name"] for b in r["backends"]]'
json 'any(b["name"] == "sim" and b["available"] for b in r["backends"])'
json 'all(b["available"] or b["reason"] for b in r["backends"])'
json 'r["version"]'

# An answer that cannot be written is a failure, not silence.
if [ -e /dev/full ]; then
    "$MOONBRIGHT" info >/dev/full 2>"$WORK/err"
    [ $? -eq 1 ] || fail "a full device gave no status 1"
    says err "writing the output failed"
fi
finish
