#!/usr/bin/env bash
# Tests octaplex.transformers, octaplex.capture and octaplex.calibrate with the real PyTorch and transformers: test_transformers.py,
# test_transformers_random.py (OCTAPLEX_RUNS=40), test_start.py, test_commands.py, test_capture.py and test_calibrate.py of
# bindings/python/tests.
#
# usage: ci/transformers.sh
#        ci/transformers.sh MODEL.gguf    also compares the text that a model writes with that of `octaplex generate`
#                                         (test_transformers_model.py); minutes with SmolLM2-135M
#
# It builds the wheel of this clone with pip, and installs it in a fresh environment. OCTAPLEX_TORCH is what pip installs as
# PyTorch: torch==2.9.1 by default, or the path of a wheel. OCTAPLEX_NEWEST=1 takes the newest transformers, instead of the version
# that is tested. It is not part of .ci/run, because PyTorch takes gigabytes, and Debian's is too old for transformers.
set -euo pipefail
[[ $# == 0 ]] || model=$(realpath -e "$1")
cd "$(dirname "$0")/.."
target=$PWD/target/python
transformers=transformers==5.24.0
[[ -z ${OCTAPLEX_NEWEST:-} ]] || transformers=transformers
tests=(tests/test_transformers.py tests/test_transformers_random.py tests/test_start.py tests/test_commands.py tests/test_capture.py tests/test_calibrate.py)
if [[ $# -gt 0 ]]; then
  export OCTAPLEX_MODEL OCTAPLEX_TOOL
  OCTAPLEX_MODEL=$model
  OCTAPLEX_TOOL=${CARGO_TARGET_DIR:-$PWD/target}/release/octaplex
  cargo build --release --locked --quiet -p octaplex-cli --features models
  tests+=(tests/test_transformers_model.py)
fi
export CARGO_TARGET_DIR=$target
python3 -m venv --clear "$target/transformers"
"$target/transformers/bin/pip" install --quiet --disable-pip-version-check --constraint ci/requirements.txt ./bindings/python pytest ml_dtypes "${OCTAPLEX_TORCH:-torch==2.9.1}" "$transformers" gguf==0.19.0 accelerate==1.15.0 sentencepiece==0.2.3
cd bindings/python
"$target/transformers/bin/python" -m pytest -q -rs -p no:cacheprovider "${tests[@]}"
