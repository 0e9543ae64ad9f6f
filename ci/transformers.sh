#!/usr/bin/env bash
# octaplex.transformers, octaplex.capture and octaplex.calibrate with the real PyTorch and transformers: the wheel, as pip builds it from a
# clone, a fresh environment, and tests/test_transformers.py, test_commands.py, test_capture.py and test_calibrate.py. `ci/transformers.sh MODEL.gguf` also
# has a model write, beside `octaplex generate`: tests/test_transformers_model.py (SmolLM2-135M takes minutes). Not part of .ci/run:
# PyTorch takes gigabytes. OCTAPLEX_TORCH names what pip is to install for it (torch==2.9.1 by default, or a wheel's path).
set -euo pipefail
[[ $# == 0 ]] || model=$(realpath -e "$1")
cd "$(dirname "$0")/.."
target=$PWD/target/python
tests=(tests/test_transformers.py tests/test_commands.py tests/test_capture.py tests/test_calibrate.py)
if [[ $# -gt 0 ]]; then
  export OCTAPLEX_MODEL OCTAPLEX_TOOL
  OCTAPLEX_MODEL=$model
  OCTAPLEX_TOOL=${CARGO_TARGET_DIR:-$PWD/target}/release/octaplex
  cargo build --release --locked --quiet -p octaplex-cli --features models
  tests+=(tests/test_transformers_model.py)
fi
export CARGO_TARGET_DIR=$target
python3 -m venv --clear "$target/transformers"
"$target/transformers/bin/pip" install --quiet --disable-pip-version-check ./bindings/python pytest==9.2.0 ml_dtypes==0.6.0 "${OCTAPLEX_TORCH:-torch==2.9.1}" transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 sentencepiece==0.2.3
cd bindings/python
"$target/transformers/bin/python" -m pytest -q -rs -p no:cacheprovider "${tests[@]}"
