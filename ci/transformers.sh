#!/usr/bin/env bash
# octaplex.transformers with the real PyTorch and transformers: the wheel, as pip builds it from a clone, a fresh environment, and
# tests/test_transformers.py. Not part of .ci/run: PyTorch takes gigabytes. OCTAPLEX_TORCH names what pip is to install for it
# (torch==2.9.1 by default, or a wheel's path).
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/python
export CARGO_TARGET_DIR=$target
python3 -m venv --clear "$target/transformers"
"$target/transformers/bin/pip" install --quiet --disable-pip-version-check ./bindings/python pytest==9.2.0 ml_dtypes==0.6.0 "${OCTAPLEX_TORCH:-torch==2.9.1}" transformers==5.23.0
cd bindings/python
"$target/transformers/bin/python" -m pytest -q -rs -p no:cacheprovider tests/test_transformers.py
