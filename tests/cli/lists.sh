#!/usr/bin/env bash
# Lists of the command line and of the configuration: an element that is missing or given twice is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

refused() {
    local text=$1
    shift
    run 2 "$@" && says err "$text"
}

trace=$TORCH/llama-recompute.csv.gz
for list in uaf\| \|uaf uaf\|\|leaks; do
    refused "a name is missing beside a '|'" replay "$trace" --backend sim --events 9 --config "check:$list"
done
refused "uaf is given twice" replay "$trace" --backend sim --events 9 --config "check:uaf|uaf"
run 0 replay "$trace" --backend sim --events 9 --config "check:uaf|leaks"
for list in "2MiB," ",2MiB" "2MiB,,4MiB" ""; do
    refused "expected multiples of 2MiB joined by commas" bench map --backend sim --samples 1 --sizes "$list"
done
for list in torch-caching+ +torch-caching torch-caching++tf-bfc ""; do
    refused "joined by +" bench frag "$trace" --policies "$list"
done
for list in "map," ",map" "map,,alias" ""; do
    refused 'names "", which is no experiment' bench all --backend sim --quick --json - --only "$list"
done
for list in "torch-caching," "torch-caching,,max_split_size:20MiB" "torch-caching,max_split_size:20MiB,"; do
    refused "an option is missing beside a comma" replay "$trace" --policy "$list"
done
refused "the option max_split_size is given twice" replay "$trace" \
    --policy torch-caching,max_split_size:200MiB,max_split_size:20MiB
run 0 replay "$trace" --policy torch-caching,max_split_size:200MiB --events 99

finish
