#!/usr/bin/env bash
# A Cargo configuration, for commands that run the tool on the two-layer model of its tests: what language models need besides octaplex
# is large, and its release builds unoptimised. The packages are those that the development profile leaves so.
set -euo pipefail
cd "$(dirname "$0")/.."
sed -n 's/^\[profile\.dev\.package\.\([a-z].*\)\]$/[profile.release.package.\1]\nopt-level = 0/p' Cargo.toml
