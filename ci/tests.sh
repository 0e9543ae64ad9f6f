#!/usr/bin/env bash
# Runs the tests of optional features, which the README's command leaves out. Without a GPU, GPU tests say what is missing.
# `ci/libm.sh` has those without a heap.
#
# usage: ci/tests.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Naming octaplex-arch too enables its default features, as in the README's command, so that it is not built again.
models=(-p octaplex-cli -p octaplex-candle -p octaplex-arch --features octaplex-cli/models --locked)
cargo test "${models[@]}" --bins --test models --test cache --test qwen2
cargo test "${models[@]}" --lib -- rows::tests
cargo test "${models[@]}" --doc

# The host side of GPUs has no loops that need optimising, and the tests of other features are short.
export CARGO_PROFILE_DEV_OPT_LEVEL=0
gpu=(-p octaplex -p octaplex-arch --features octaplex/cuda,octaplex/hip,octaplex/rayon,octaplex/serde --locked)
cargo test "${gpu[@]}" --lib -- device::
cargo test "${gpu[@]}" --test gpu --test rayon --test serde
cargo test "${gpu[@]}" --doc -- gpu
cargo test -p octaplex-cli -p octaplex-arch --features octaplex-cli/cuda,octaplex-cli/hip --bins --locked -- gpu::
