#!/usr/bin/env bash
# Tests that the README's command leaves out: without a heap, and of optional features. GPU tests say what is missing without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without a heap: tests of bytes. Unoptimised, because that builds in a third of the time; two tests would take minutes then.
CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo test -p octaplex --no-default-features --features codecs --test suite --locked -- \
  golden:: untrusted:: verify:: own_codec:: outliers:: rates:: rotation:: --skip every_finite_vector

# With octaplex-arch and its features, as the tests above have them: they are not built again.
cargo test -p octaplex -p octaplex-arch --features octaplex/rayon,octaplex/serde --test rayon --test serde --locked
models=(-p octaplex-cli -p octaplex-candle -p octaplex-arch --features octaplex-cli/models --locked)
cargo test "${models[@]}" --bins --test models --test cache --test qwen2
cargo test "${models[@]}" --lib -- rows::tests
cargo test "${models[@]}" --doc

# The host side of GPUs has no loops that need optimising.
export CARGO_PROFILE_DEV_OPT_LEVEL=0
gpu=(-p octaplex -p octaplex-arch --features octaplex/cuda,octaplex/hip --locked)
cargo test "${gpu[@]}" --lib -- device::
cargo test "${gpu[@]}" --test gpu
cargo test "${gpu[@]}" --doc -- gpu
cargo test -p octaplex-cli -p octaplex-arch --features octaplex-cli/cuda,octaplex-cli/hip --bins --locked -- gpu::
