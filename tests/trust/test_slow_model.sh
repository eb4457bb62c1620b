#!/usr/bin/env bash
# The protocol models, over all reachable states, and each of their steps removed: see scripts/check-model.
set -euo pipefail
: "${MB_SOURCE_DIR:?}" "${MB_BUILD_DIR:?}"

exec "$MB_SOURCE_DIR/scripts/check-model" --work "$MB_BUILD_DIR/model"
