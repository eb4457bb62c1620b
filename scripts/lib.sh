# shellcheck shell=bash
# Sourced by the scripts that run steps and count them. Set $tier first: results go to build/results/$tier.tsv,
# one line «status <tab> count <tab> what <tab> reason» each, as scripts/run-tests writes them too.

results=build/results
: "${tier:?set the tier first}"

# record passed|failed|skipped WHAT [REASON]
record() {
    mkdir -p "$results"
    printf '%s\t1\t%s\t%s\n' "$1" "$2" "${3-}" >>"$results/$tier.tsv"
    echo "$tier: $2: $1${3:+ ($3)}"
}

# step WHAT COMMAND...: runs the command, shows its output only if it fails, and records the outcome.
step() {
    local what=$1 log
    shift
    log=$results/$tier-${what//[^a-zA-Z0-9]/-}.log
    mkdir -p "$results"
    if "$@" >"$log" 2>&1; then
        record passed "$what"
    else
        tail -n 200 "$log"
        record failed "$what" "see $log"
        return 1
    fi
}

# have COMMAND WHAT: true if the command is there; else records that WHAT was skipped.
have() {
    command -v "$1" >/dev/null && return
    record skipped "$2" "$1 is not installed"
    return 1
}

# The files of the project: known to git, or about to be; in an unpacked archive, all but build/.
project_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard
    else
        find . \( -path ./build -o -path ./.git \) -prune -o -type f -print | sed 's|^\./||'
    fi | while IFS= read -r file; do
        [ ! -f "$file" ] || echo "$file"
    done
}
