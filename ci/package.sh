#!/usr/bin/env bash
# Checks the packages for crates.io, and tests the library from them:
#   * each has a README and both licences, and contains no file that only the repository needs;
#   * they compile, with the GPU code too;
#   * without a heap, and with an old version of the crate `libm`, bytes and results are the same;
#   * a build with one family of codecs names the feature that a codec needs.
# These share a folder, so that kernels are compiled twice: without a heap and with one.
#
# usage: ci/package.sh
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/package tree=$PWD/target/package/tree
published=(octaplex-arch octaplex-device octaplex)
for name in "${published[@]}" octaplex-metrics octaplex-files octaplex-cli octaplex-c octaplex-candle; do
  list=$(cargo package -p "$name" --locked --list)
  for file in README.md LICENSE-APACHE LICENSE-MIT; do
    grep -qx "$file" <<<"$list" || { echo "$name has no $file" >&2; exit 1; }
  done
  # These files are for the repository only.
  if grep -E '(^|/)(tests|benches|fuzz|ci|golden)/|architecture\.md' <<<"$list"; then
    echo "$name: these do not belong into a package" >&2
    exit 1
  fi
done
# Copies of the licences are equal to the originals. npm and maturin do not follow links, so there are copies.
for name in MIT APACHE; do
  for copy in arch arch/device cli files metrics bindings/{c,candle,wasm,python/licenses}; do cmp "LICENSE-$name" "$copy/LICENSE-$name"; done
done

# The repository, where the packages replace the sources of the library. Tests are in no package, so manifests do not name them.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
rm -rf "$tree" "$folder/package"
mkdir -p "$tree/arch/device"
git ls-files -z --cached --others --exclude-standard -- . ':!src' ':!arch' ':!examples' ':!cli' ':!files' ':!metrics' ':!Cargo.toml' \
  | while IFS= read -rd '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done | xargs -0 cp --parents -t "$tree"
cargo package --quiet --locked --no-verify "${published[@]/#/--package=}" --target-dir "$folder" 2>"$folder/log" \
  || { cat "$folder/log" >&2; exit 1; }
unpack() { # unpack NAME FOLDER: with new times, because all files in packages have the same one, by which Cargo sees no change
  tar -xzmf "$folder/package/$1-$version.crate" -C "$2" --strip-components=1 --exclude Cargo.lock
}
unpack octaplex "$tree"
unpack octaplex-arch "$tree/arch"
unpack octaplex-device "$tree/arch/device"
cd "$tree"
cat >>Cargo.toml <<'TOML'
[[test]]
name = "suite"
path = "tests/suite.rs"
[[test]]
name = "features"
path = "tests/features.rs"
[workspace]
members = ["arch", "arch/device"]
[patch.crates-io]
octaplex-arch = { path = "arch" }
octaplex-device = { path = "arch/device" }
TOML
cargo update --quiet -p libm --precise 0.2.11
[[ $(cargo tree --locked -p octaplex -e normal --prefix none | grep -c '^libm v0.2.11') -gt 0 ]]

# Without optimisation they build in a third of the time. `ci/suite.sh` runs all cases of the long tests.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR=$folder/build
tests() { # tests FEATURES TEST ARGUMENT...
  env -u OCTAPLEX_THOROUGH cargo test --quiet --locked -p octaplex --no-default-features --features "$1" --test "$2" -- "${@:3}"
}
tests codecs suite golden:: untrusted:: verify:: own_codec:: outliers:: rates:: rotation:: qjl:: polarquant:: --skip every_finite_vector
tests codecs,alloc suite rotation::haar # these need a heap
tests alloc,trellis features
cargo check --quiet --locked -p octaplex --features cuda,hip,rayon,serde
