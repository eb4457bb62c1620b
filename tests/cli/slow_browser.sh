#!/usr/bin/env bash
# The pages of `bench all` and `map` in a real browser: nothing is wider than a phone, every picture has a size and a
# title, no text is too small, the console is silent, nothing comes from elsewhere.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "SKIP: pages in a browser: no chromium here; scripts/bootstrap --check installs it as root"
    exit 77
}

look() {
    if python3 "$SOURCE/tests/cli/browser_check.py" "$browser" "$1" >"$WORK/found" 2>&1; then
        passed=$((passed + 1))
    else
        fail "${1##*/}:"
        sed 's/^/    /' "$WORK/found" | head -30
    fi
}

run 0 bench all --backend sim --quick --quiet --html "$WORK/report.html" --json "$WORK/all.json" \
    --only map,unmap,remap,alias,protect,alloc,beside,calls,degrade,wrap,full,safety,latency,probe,litmus,budget \
    --include "$SOURCE"/bench/results/*.json "$SOURCE"/bench/results/*.jsonl "$SOURCE"/bench/results/*.profile
look "$WORK/report.html"
grep -Eq '^pictures [0-9]{2,3} ' "$WORK/found" || fail "few pictures: $(cat "$WORK/found")"
run 0 map "$TORCH/gpt2.csv.gz" -o "$WORK/map.html" --moments 6
look "$WORK/map.html"
# The check itself sees what is wrong.
sed 's/<main>/<main><div style="width:900px">wide<\/div><img src="http:\/\/example.invalid\/x.png">/' \
    "$WORK/map.html" >"$WORK/wrong.html"
if python3 "$SOURCE/tests/cli/browser_check.py" "$browser" "$WORK/wrong.html" >"$WORK/found" 2>&1; then
    fail "a page that is too wide was passed"
fi
cp "$WORK/found" "$WORK/out"
says out "the page is"
says out "refers to elsewhere"
finish
