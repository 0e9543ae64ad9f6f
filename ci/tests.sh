#!/usr/bin/env bash
# Runs the tests of optional features, which the README's command leaves out. Without a GPU, GPU tests say what is missing.
# `ci/package.sh` has those without a heap.
#
# usage: ci/tests.sh
set -euo pipefail
cd "$(dirname "$0")/.."

models=(-p octaplex-cli -p octaplex-candle --features octaplex-cli/models --locked)
cargo test "${models[@]}" --bins --test models --test cache --test qwen2
cargo test "${models[@]}" --lib -- rows::tests
cargo test "${models[@]}" --doc

# Kernels for CPUs are those that `ci/suite.sh` has built.
cargo test -p octaplex-device --features cuda,hip --lib --locked
gpu=(-p octaplex --features cuda,hip,rayon,serde --locked)
cargo test "${gpu[@]}" --test gpu --test rayon --test serde
cargo test "${gpu[@]}" --doc -- gpu
cargo test -p octaplex-cli --features cuda,hip --bins --locked -- gpu::
