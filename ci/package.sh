#!/usr/bin/env bash
# The packages: what is in them builds by itself, and is what a user of the crate needs.
set -euo pipefail
cd "$(dirname "$0")/.."
# Cargo unpacks octaplex-arch once for each target folder and version and would check an older text the next time.
mkdir -p target
folder=$PWD/target/package.$$
trap 'rm -rf "$folder"' EXIT
CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo package -p octaplex-arch -p octaplex --locked --target-dir "$folder" # that it builds
for name in octaplex-arch octaplex octaplex-metrics octaplex-files octaplex-cli octaplex-c octaplex-candle; do
  list=$(cargo package -p "$name" --locked --list)
  for file in README.md LICENSE-APACHE LICENSE-MIT; do
    grep -qx "$file" <<<"$list" || { echo "$name has no $file" >&2; exit 1; }
  done
  # What only the repository can run or needs stays there.
  if grep -E '(^|/)(tests|benches|fuzz|ci|golden)/|architecture\.md' <<<"$list"; then
    echo "$name: these do not belong into a package" >&2
    exit 1
  fi
done
# Copies of the licences are whole. (npm and maturin follow no links.)
for name in MIT APACHE; do
  for copy in arch cli files metrics bindings/{c,candle,wasm,python/licenses}; do cmp "LICENSE-$name" "$copy/LICENSE-$name"; done
done
