#!/usr/bin/env bash
# Checks in seconds: rustfmt, Markdown, and the specification's own decoders in Python.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
ci/docs.py
python3 tests/specification/check.py
