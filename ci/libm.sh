#!/usr/bin/env bash
# Tests the library without a heap, and with an old version of the crate `libm`: bytes and results depend on neither.
#
# usage: ci/libm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/libm/tree
rm -rf "$folder"
mkdir -p "$folder"
git ls-files -z | xargs -0 cp --parents -t "$folder"
cd "$folder"
# The tool's dependencies need a newer version, so the tool is left out.
rm -r cli files metrics
sed -i 's/^members = .*/members = [".", "arch"]/' Cargo.toml
cargo update --quiet -p libm --precise 0.2.11
[[ $(cargo tree --locked -p octaplex -e normal --prefix none | grep -c '^libm v0.2.11') -gt 0 ]]
# Without optimisation they build in a third of the time. The README's command runs all cases of the long ones.
tests() { # tests FEATURES PATTERN...
  env -u OCTAPLEX_THOROUGH CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR=$folder/../build \
    cargo test --quiet --locked -p octaplex --no-default-features --features "$1" --test suite -- "${@:2}"
}
tests codecs golden:: untrusted:: verify:: own_codec:: outliers:: rates:: rotation:: qjl:: polarquant:: --skip every_finite_vector
tests codecs,alloc rotation::haar # these need a heap
