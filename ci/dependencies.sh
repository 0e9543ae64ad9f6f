#!/usr/bin/env bash
# Licences, sources and forbidden crates of the workspace and of those beside it (deny.toml), and the workspace's known vulnerabilities, whose database
# is fetched from GitHub; `ci/dependencies.sh offline` leaves these out. `ci/dependencies.sh semver REVISION`: what broke in the library's
# interface since then, by cargo-semver-checks. Not part of .ci/run: `cargo install --locked cargo-deny` takes minutes, the check itself seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == semver ]]; then
  cargo semver-checks --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-semver-checks
  CARGO_TARGET_DIR=$PWD/target/semver cargo semver-checks -p octaplex --baseline-rev "${2:?a revision to compare with}"
  exit
fi
cargo deny --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-deny
for folder in . bindings/python bindings/wasm fuzz benches/peers; do
  echo "$folder"
  cargo deny --locked --all-features --config deny.toml --manifest-path "$folder/Cargo.toml" check --hide-inclusion-graph \
    -A license-not-encountered -A license-exception-not-encountered licenses bans sources
done
[[ ${1:-} == offline ]] || cargo deny check advisories
