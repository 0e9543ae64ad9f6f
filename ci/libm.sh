#!/usr/bin/env bash
# The library beside a crate that wants another libm: the golden bytes do not depend on its version.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/libm/tree
rm -rf "$folder"
mkdir -p "$folder"
git ls-files -z | xargs -0 cp --parents -t "$folder"
cd "$folder"
# The tool's libraries want a newer one; the library takes any.
rm -r cli files metrics
sed -i 's/^members = .*/members = [".", "arch"]/' Cargo.toml
cargo update --quiet -p libm --precise 0.2.11
[[ $(cargo tree --locked -p octaplex -e normal --prefix none | grep -c '^libm v0.2.11') -gt 0 ]]
# Unoptimised, these tests take less time than optimising does.
CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR=$folder/../build cargo test --quiet --locked -p octaplex --test suite -- golden:: rotation:: qjl:: polarquant::
