#!/usr/bin/env bash
# Builds the library with no codec to choose at run time, with each family alone, and checks what a build with one family says
# of the others. Builds with all of them are what every other script has.
set -euo pipefail
cd "$(dirname "$0")/.."
families=$(sed -n 's/^codecs = \[\(.*\)\]$/\1/p' Cargo.toml | tr -d '",')
[[ $(wc -w <<<"$families") -ge 9 ]] || { echo "Cargo.toml has no list of codecs' features" >&2; exit 1; }
export RUSTFLAGS="-D warnings"
for features in "" alloc $families; do
  echo "features: ${features:-none}"
  cargo check --quiet -p octaplex --no-default-features --features "$features" --locked
  [[ -z $features ]] || cargo check --quiet -p octaplex --no-default-features --features "alloc,$features" --locked
done
CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo test -p octaplex --no-default-features --features alloc,trellis --test features --locked
