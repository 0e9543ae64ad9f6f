#!/usr/bin/env bash
# Lints without running anything: a build with the declared Rust version, clippy with all features and without, each family of
# codecs (ci/features.sh), and rustdoc.
#
# usage: ci/lints.sh
set -euo pipefail
cd "$(dirname "$0")/.."
declared=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
oldest=()
if [[ $(rustc --version) != "rustc $declared."* ]]; then
  rustup run "$declared.0" rustc --version 2>/dev/null || rustup toolchain install "$declared.0" --profile minimal
  oldest=("+$declared.0")
fi
cargo "${oldest[@]}" check -p octaplex --locked
cargo "${oldest[@]}" check -p octaplex --no-default-features --locked

# With all features, so that clippy and rustdoc share what they check.
features=octaplex/rayon,octaplex/serde,octaplex/cuda,octaplex/hip,octaplex-cli/cuda,octaplex-cli/hip,octaplex-cli/models
all=(--workspace --features "$features" --locked)
cargo clippy "${all[@]}" --all-targets -- -D warnings
ci/features.sh
cargo clippy -p octaplex -p octaplex-device --features octaplex/hip --locked -- -D warnings # without CUDA
RUSTDOCFLAGS="-D warnings" cargo doc "${all[@]}" --no-deps
