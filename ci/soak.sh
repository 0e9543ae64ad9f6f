#!/usr/bin/env bash
# `ci/soak.sh SECONDS`: a cache of a million tokens under random appends, rollbacks, evictions, forks, saves and loads, held against a
# model; says what was done and how much memory it took, and fails where that grows, from 200 operations
# on. Not part of .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "usage: ci/soak.sh SECONDS, a number" >&2; exit 2; }
OCTAPLEX_SOAK_SECONDS=$1 cargo test --quiet --locked --test suite -- --ignored --nocapture soak::
