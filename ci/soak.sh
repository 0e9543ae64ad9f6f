#!/usr/bin/env bash
# Tests a cache of a million tokens with random appends, rollbacks, evictions, forks, saves and loads, and compares it with a
# plain model. Prints what it did and how much memory it took. Fails if memory grows by a quarter after the 60th operation.
#
# usage: ci/soak.sh SECONDS      `.ci/nightly` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "usage: ci/soak.sh SECONDS, a number" >&2; exit 2; }
OCTAPLEX_SOAK_SECONDS=$1 cargo test --quiet --locked --test suite -- --ignored --nocapture soak::
