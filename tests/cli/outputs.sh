#!/usr/bin/env bash
# What commands write: whole or as it was, no model told as a measurement, no text of a file taken for markup.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# ------------------------------------------------------------------ outputs are whole or as they were
echo before >"$WORK/kept"
run 1 bench all --no-run --html "$WORK/kept" --json /dev/full
run 2 map "$WORK/none" -o "$WORK/kept"
run 2 bench all --no-run --html "$WORK/kept" --include "$WORK/missing.json"
[ "$(cat "$WORK/kept")" = before ] || fail "a command that failed changed its output"
run 2 bench all --no-run --html "$WORK/kept" --json "$WORK/kept"
says err "would write over"
cp "$TORCH/gpt2.csv.gz" "$WORK/own.csv.gz"
ln -s own.csv.gz "$WORK/own-link.csv.gz"
run 2 map "$WORK/own.csv.gz" -o "$WORK/own-link.csv.gz"
says err "which is read"
cmp -s "$TORCH/gpt2.csv.gz" "$WORK/own.csv.gz" || fail "map wrote over its trace"
# The place to write to is looked at before the work, not after.
run 1 bench all --html "$WORK" --backend sim
says err "directory"
run 1 bench all --html "$WORK/none/page.html" --backend sim
says err "No such file"
# Interrupted in the middle: as it was, nothing beside it, and no bench goes on alone.
python3 - "$MOONBRIGHT" "$WORK" <<'PYTHON' || fail "an interrupted command left something behind"
import os, signal, subprocess, sys, time
command, work = sys.argv[1], sys.argv[2] + "/stopped"
os.mkdir(work)
def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()
def words(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()
def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
def gone(pid):
    try:
        return state(pid) in "ZX"
    except OSError:
        return True
def defaults():
    """A shell that runs this in the background has its programs ignore SIGINT."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_DFL)
def start():
    """The command, and its bench, which stands still, so that it cannot be over before the command is interrupted."""
    while True:
        for name in ("page.html", "out.json"):
            with open(f"{work}/{name}", "w") as file:
                file.write("before")
        process = subprocess.Popen([command, "bench", "all", "--backend", "sim", "--quiet", "--only", "churn", "--html",
                                    work + "/page.html", "--json", work + "/out.json"], preexec_fn=defaults)
        try:
            child = None
            while not child or words(child) == words(process.pid):
                if process.poll() is not None:
                    raise ProcessLookupError
                time.sleep(0.001) # what is not the bench yet would not end with the command
                child = next(iter(children(process.pid)), None)
            os.kill(int(child), signal.SIGSTOP) # the one that was looked at, not the next
            while state(child) not in "TZX":
                time.sleep(0.001)
            if state(child) == "T":
                return process, child
        except OSError:
            pass # the bench was over before it could be stopped
        assert process.wait() == 0, process.returncode
for stop in (signal.SIGINT, signal.SIGTERM):
    process, child = start()
    process.send_signal(stop)
    assert process.wait() == -stop, process.returncode
    while not gone(child):
        time.sleep(0.01)  # the test's own time limit ends this
    assert sorted(os.listdir(work)) == ["out.json", "page.html"], os.listdir(work)
    assert all(open(f"{work}/{name}").read() == "before" for name in os.listdir(work))
PYTHON
# Through a link, with the rights of the file that was there, and nothing left beside it.
mkdir "$WORK/there"
echo old >"$WORK/there/page.html"
chmod 640 "$WORK/there/page.html"
ln -s there/page.html "$WORK/link.html"
run 0 bench all --no-run --html "$WORK/link.html"
if [ ! -L "$WORK/link.html" ] || ! grep -q "</html>" "$WORK/there/page.html"; then fail "a link was replaced"; fi
[ "$(stat -c %a "$WORK/there/page.html")" = 640 ] || fail "the rights of a page changed"
[ "$(ls "$WORK/there")" = page.html ] || fail "left beside a page: $(ls "$WORK/there")"

# ------------------------------------------------------------------ no model is told as a measurement
run 0 replay "$TORCH/gpt2.csv.gz" --backend sim --events 3000 --json --quiet
cp "$WORK/out" "$WORK/sim.json"
run 0 replay "$TORCH/gpt2.csv.gz" --policy torch-caching --events 3000 --json --quiet
cp "$WORK/out" "$WORK/policy.json"
run 0 bench all --no-run --json - --include "$WORK/sim.json" "$WORK/policy.json"
json 'all(f["kind"] == "modelled" for f in r["figures"] if f["experiment"] == "efficiency")'
json 'any(f["experiment"] == "efficiency" for f in r["figures"])'
# Derived traces bear the names of recorded ones and are kept apart from them; every trace has a chart, once.
run 0 bench all --no-run --html - --include "$SOURCE"/bench/results/*.json*
cp "$WORK/out" "$WORK/page"
for trace in densenet161 gpt2 llama-recompute moe-offload-recompute llama-generate-beam4 "densenet161+none, derived" \
    "qwen1.5-moe+rv, derived"; do
    grep -q "<h3>$trace</h3>" "$WORK/page" || fail "no chart of memory held for $trace"
done
says out "CUDA VMM (A100) (published)"
run 0 bench all --no-run --json - --include "$SOURCE/bench/results/sim-all.json"
json 'len(p := [(f["what"], f["how"], f["metric"], f.get("x")) for f in r["figures"] if f["kind"] == "published"]) == len(set(p))'

# ------------------------------------------------------------------ what files say is not markup
python3 - "$WORK" <<'PYTHON'
import json, sys
x = "</script><img src=x onerror=alert(1)>\"'&"
rows = [{"what": "map", "how": x, "bytes": 1e300, "samples": -1e300, "note": x, "host_us": {"median": 1e308}},
        {"what": "map x2", "how": x, "bytes": 1e300, "complete_us": {"median": 5}}]
figure = {"experiment": x, "what": x, "how": x, "metric": x, "unit": x, "x": 1e300, "x_unit": "bytes", "value": 1e308,
          "kind": x, "note": x, "samples": 1e300, "origin": 1e300}
churn = figure | {"experiment": "churn", "what": "malloc_async", "how": "MoonBright", "metric": "host", "unit": "us",
                  "x": 1, "x_unit": x, "value": 1, "kind": "measured", "origin": 0}
objects = [{"bench": x, "device": x, "command": [x, x], "commit": x, "rows": rows},
           {"bench": "bench scale", "rows": rows},
           {"bench": x, "figures": [churn, churn | {"x": 2}], "origins": [{"machine": x, "file": x}]},
           {"bench": x, "figures": [figure, figure | {"origin": -5, "x": -1e300}], "origins": [{"machine": x, "file": x}]},
           {"programs": [{"name": x, "verdict": x, "answer": x}], "device": x},
           {"facts": [{"name": x, "unit": x, "value": 1, "note": x}], "device": x},
           {"trace": x, "policy": x, "efficiency": 1e300, "malloc": {"count": -1e300, "p50_ns": 1}},
           {"cache": x, "what": "long", "model": x, "tokens": 1e300, "ttft_ms": 1}, {"bench": x, x: {x: {x: 1}}}]
open(sys.argv[1] + "/markup.json", "w").write("\n".join(map(json.dumps, objects)))
PYTHON
run 0 bench all --no-run --html "$WORK/markup.html" --json "$WORK/markup.out" --include "$WORK/markup.json"
grep -q "<img" "$WORK/markup.html" && fail "a result's text became markup"
python3 -m json.tool "$WORK/markup.out" >/dev/null || fail "a result's text broke the JSON"
run 0 bench compare "$WORK/markup.json" "$WORK/markup.json" --all
printf 'op,id,bytes,stream\na,1,4194304,0\n' >"$WORK/<img src=x onerror=alert(1)>.csv"
run 0 map "$WORK/<img src=x onerror=alert(1)>.csv" -o -
grep -q "<img" "$WORK/out" && fail "a file's name became markup"
finish
