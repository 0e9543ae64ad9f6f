#!/usr/bin/env bash
# Runs the tool with language models, or the example that writes a two-layer model. It uses the development build of the tests, which
# is fast enough for such models and is not built twice.
#
# usage: ci/tool.sh octaplex ARGUMENT...
#        ci/tool.sh tiny_model MODEL TEXT
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
cargo build --quiet --locked --manifest-path "$root/Cargo.toml" -p octaplex-cli -p octaplex-candle --features octaplex-cli/models \
  --bin octaplex --example tiny_model
built=${CARGO_TARGET_DIR:-$root/target}/debug
[[ $1 == octaplex ]] || built+=/examples
exec "$built/$1" "${@:2}"
