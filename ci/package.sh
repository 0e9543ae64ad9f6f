#!/usr/bin/env bash
# Checks the packages for crates.io: they build on their own, have a README and both licences, and contain no file that only the
# repository needs.
#
# usage: ci/package.sh
set -euo pipefail
cd "$(dirname "$0")/.."
# Cargo unpacks octaplex-arch once for each target folder and version, and would check older sources the next time. So each run has
# a folder of its own.
mkdir -p target
folder=$PWD/target/package.$$
trap 'rm -rf "$folder"' EXIT
CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo package -p octaplex-arch -p octaplex-device -p octaplex --locked --target-dir "$folder" # that it builds
for name in octaplex-arch octaplex-device octaplex octaplex-metrics octaplex-files octaplex-cli octaplex-c octaplex-candle; do
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
