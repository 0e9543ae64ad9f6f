#!/usr/bin/env bash
# Checks licences, sources and forbidden crates of all workspaces (deny.toml), and known vulnerabilities of the main one.
#
# usage: ci/dependencies.sh                     checks all; fetches the database of vulnerabilities from GitHub
#        ci/dependencies.sh offline             checks all except vulnerabilities
#        ci/dependencies.sh semver REVISION     lists what broke in the API since then, with cargo-semver-checks
#
# .ci/nightly runs it. It is not part of .ci/run, because it installs cargo-deny, which takes minutes.
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
