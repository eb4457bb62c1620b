#!/usr/bin/env bash
# No number of README.md and doc/ without its source, and doc/results.md as the raw results give it; and that the two
# scripts which say so notice what is wrong.
# shellcheck disable=SC2016 # backquotes are Markdown here
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

expect 0 "$MB_SOURCE_DIR/scripts/check-numbers"
expect 0 "$MB_SOURCE_DIR/scripts/results" --check

# ------------------------------------------------------------ a project of its own
mkdir -p "$scratch/scripts" "$scratch/doc" "$scratch/bench/results" "$scratch/src"
cp "$MB_SOURCE_DIR"/scripts/{check-numbers,results} "$scratch/scripts"
check() {
    local want=$1
    cat >"$scratch/README.md"
    expect "$want" "$scratch/scripts/check-numbers"
}
cat >"$scratch/bench/results/a.json" <<'JSON'
{"bench": "bench map", "device": "GPU", "command": "x", "rows": [
  {"what": "map", "how": "one", "bytes": 2097152, "samples": 3, "host_us": {"median": 32951.2, "p99": 40000}},
  {"what": "map", "how": "two", "bytes": 2097152, "samples": 3, "host_us": {"median": 12.72, "p99": 20}, "value": 1.123,
   "note": "time over time alone"}]}
JSON
echo 'static int replay_ns = 28000;' >"$scratch/src/model.c"

check 1 <<<'It takes 12.7 us.'
expect_text "README.md:1: «12.7 us» has no source"
expect_text "<!-- source: bench/results/FILE -->"
check 0 <<<'It takes 12.7 us (`bench/results/a.json`).'
check 0 <<<'It takes 12.7 us, [raw](bench/results/a.json), and 32,951 us and 33.0 ms before; 12.3% more.'
check 1 <<<'It takes 12.6 us ([raw](bench/results/a.json)).'
expect_text "«12.6 us» is in none of its sources"
check 1 <<<'Two: 13 to 14 us (`bench/results/a.json`).'
expect_text "«14 us»"
check 0 <<<'About 33,500 us (`bench/results/a.json`), which is about 5% off.
<!-- no result: five percent is what the script allows -->'
check 1 <<<'It takes 12.7 us (`bench/results/b.json`).'
expect_text "bench/results/b.json is not there"
check 1 <<<'It is 18.5 times
lower.'
expect_text "«18.5 times"
# Only in some rows.
check 1 <<<'<!-- source: bench/results/a.json#"two" -->
It takes 32,951 us.'
check 0 <<<'<!-- source: bench/results/a.json#"one" -->
It takes 32,951 us.'
# Tables: units in the cells, in the head, in the name of a row.
check 1 <<'PAGE'
| way | host, us | what |
|---|---|---|
| `two_ns` | 12.7 | 7 frames |
PAGE
expect_text "«12.7 us»"
check 0 <<'PAGE'
Of `bench/results/a.json`:

| way | host, us | p99 |
|---|---|---|
| two | **12.7** | 20 us |
PAGE
check 1 <<'PAGE'
<!-- source: src/model.c -->

| fact | value |
|---|---|
| `replay_ns` | 28,001 |
PAGE
check 0 <<'PAGE'
<!-- source: src/model.c -->

| fact | value |
|---|---|
| `replay_ns` | 28,000 |

It replays after 28 us (`replay_ns`).
<!-- source: src/model.c -->
PAGE
# A source holds below its heading and not beyond.
check 1 <<'PAGE'
# One

See `bench/results/a.json`.

It takes 12.7 us.

# Two

It takes 12.7 us.
PAGE
expect_text "README.md:9: "
# Arithmetic is done again, from numbers of the sources.
check 0 <<<'<!-- source: bench/results/a.json -->
<!-- calculated: 2,591 = 32951 / 12.72 -->
2,591× as fast.'
check 1 <<<'<!-- source: bench/results/a.json -->
<!-- calculated: 2,700 = 32951 / 12.72 -->
2,700× as fast.'
expect_text "is 2590.49"
check 1 <<<'<!-- source: bench/results/a.json -->
<!-- calculated: 2,000 = 32000 / 16 -->
2,000× as fast.'
expect_text "is in none of the sources"
# What is no result says why; code and sizes are left alone.
check 0 <<<'<!-- no result: a limit of the format -->
At most 17 us.'
check 1 <<<'<!-- no result: so -->
At most 17 us.'
expect_text "does not say why"
check 0 <<'PAGE'
Pages of 2 MB, `17 us`, 16 × 4 entries.

```
it took 17 us
```
PAGE
check 1 <<<'<!-- source: ../../etc/passwd -->
It takes 0.5 us.'
expect_text "is not a file of the project"

# ------------------------------------------------------------ the generated page
expect 1 "$scratch/scripts/results" --check
expect_text "run scripts/results"
cat >"$scratch/bench/results/b.jsonl" <<'JSON'
{"what": "plugin-replay", "trace": "one.csv.gz", "tables": "simulated", "efficiency": 0.5, "wrong_accesses": 0}
{"what": "replay", "trace": "two.csv.gz", "policy": "torch", "tables": null, "efficiency": 0.75, "wrong_accesses": 0}
{"trace": "three.csv.gz", "efficiency": 0.25}
JSON
expect 0 "$scratch/scripts/results"
expect 0 "$scratch/scripts/results" --check
output=$(cat "$scratch/doc/results.md")
expect_text "| map | two | 2 MiB | 3 | 12.72 | 20 | 1.123 | time over time alone |"
expect_text "| one | plugin-replay, simulated | 50.0% |"
expect_text "| two | torch | 75.0% |"
expect_text "| three | – | 25.0% |"
sed -i 's/12\.72/12.71/' "$scratch/doc/results.md"
expect 1 "$scratch/scripts/results" --check
expect_text "12.71"
