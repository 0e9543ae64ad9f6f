#!/usr/bin/env bash
# Checks that the library builds without codecs, with a heap and without, and with each family of codecs alone. All other scripts
# build every family. `ci/package.sh` tests the error for a codec that the build lacks. `ci/lints.sh` runs this script.
#
# usage: ci/features.sh
set -euo pipefail
cd "$(dirname "$0")/.."
families=$(sed -n 's/^codecs = \[\(.*\)\]$/\1/p' Cargo.toml | tr -d '",')
[[ $(wc -w <<<"$families") -ge 9 ]] || { echo "Cargo.toml has no list of codecs' features" >&2; exit 1; }
lint() { # lint FEATURES
  echo "features: ${1:-none}"
  cargo clippy --quiet -p octaplex -p octaplex-arch --no-default-features --features "$1" --locked -- -D warnings
}
lint ""
lint octaplex/alloc
for family in $families; do lint "octaplex/alloc,octaplex/$family"; done
