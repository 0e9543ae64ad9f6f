#!/usr/bin/env bash
# ci/tool.sh octaplex|tiny_model ARGUMENT...: runs the tool with language models, or the example that writes a model of two layers, from
# the development build that tests have: it is built once, and such models want no other.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
cargo build --quiet --locked --manifest-path "$root/Cargo.toml" -p octaplex-cli -p octaplex-candle -p octaplex-arch --features octaplex-cli/models \
  --bin octaplex --example tiny_model
built=${CARGO_TARGET_DIR:-$root/target}/debug
[[ $1 == octaplex ]] || built+=/examples
exec "$built/$1" "${@:2}"
