#!/usr/bin/env bash
# Licences, sources and forbidden crates of everything that is built (deny.toml); with a network known vulnerabilities too. Not part of
# .ci/run: `cargo install --locked cargo-deny` takes minutes, the check itself a second.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo deny --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-deny
cargo deny --all-features check --hide-inclusion-graph -A license-not-encountered licenses bans sources
cargo deny check advisories || echo "advisories: the database was not reached, or has an entry; see above" >&2
