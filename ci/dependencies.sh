#!/usr/bin/env bash
# Licences, sources and forbidden crates of everything that is built (deny.toml), and known vulnerabilities, whose database is fetched from GitHub;
# `ci/dependencies.sh offline` leaves these out. Not part of .ci/run: `cargo install --locked cargo-deny` takes minutes, the check itself a second.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo deny --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-deny
cargo deny --all-features check --hide-inclusion-graph -A license-not-encountered licenses bans sources
[[ ${1:-} == offline ]] || cargo deny check advisories
