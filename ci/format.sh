#!/usr/bin/env bash
# Checks in seconds: rustfmt, Markdown, tables of results, and the specification's own decoders in Python.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
ci/docs.py
ci/tables.py # tables of results against docs/plots/*.csv
python3 tests/specification/check.py
