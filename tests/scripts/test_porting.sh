#!/usr/bin/env bash
# doc/porting.md counts what is there, and scripts/porting-lines notices when it does not.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

expect 0 "$MB_SOURCE_DIR/scripts/porting-lines" --check

mkdir -p "$scratch/src/hw" "$scratch/kernels" "$scratch/doc"
cp -r "$MB_SOURCE_DIR/scripts" "$scratch/"
cp -r "$MB_SOURCE_DIR"/src/hw/. "$scratch/src/hw/"
cp "$MB_SOURCE_DIR/kernels/formats.h" "$scratch/kernels/"
sed 's/| 580 | [0-9]* |/| 580 | 3 |/; s/about \([0-9,]*\) and [0-9,]* lines/about \1 and 100 lines/' \
    "$MB_SOURCE_DIR/doc/porting.md" >"$scratch/doc/porting.md"
expect 1 "$scratch/scripts/porting-lines" --check
expect_text "a row of driver series 580"
expect_text "a backend, within a tenth"
