#!/usr/bin/env bash
# Runs the tests that the README's command leaves out: without a heap, and of optional features. Without a GPU, GPU tests say what
# is missing.
#
# usage: ci/tests.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests of bytes, without a heap. Without optimisation they build in a third of the time. The README's command runs all cases of the
# long ones.
env -u OCTAPLEX_THOROUGH CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo test -p octaplex --no-default-features --features codecs --test suite --locked -- \
  golden:: untrusted:: verify:: own_codec:: outliers:: rates:: --skip every_finite_vector

# Naming octaplex-arch too enables its default features, as in the README's command, so that it is not built again.
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
