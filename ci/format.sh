#!/usr/bin/env bash
# Checks formatting with rustfmt, the Markdown pages (ci/docs.py), the tables of results (ci/tables.py), and the decoders in
# Python that follow docs/formats.md alone (tests/specification/). It takes seconds.
#
# usage: ci/format.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
ci/docs.py
ci/tables.py # tables of results against docs/plots/*.csv
python3 tests/specification/check.py
