#!/usr/bin/env bash
# Predicts cycles a row on ARM cores: of scores and sums of 256 rows, and of the loops of ggml.c on rows of 128. qemu records every
# instruction of a kernel's call, and llvm-mca predicts their cycles. It assumes that every load hits the cache and every jump is
# predicted.
#
# LLVM has no model of the Cortex-A76: the Neoverse N1, a server core of the same design, stands for it, and the A57 for the A72.
#
# usage: [LLVM=19] benches/mca/run.sh [SHAPE...]   a shape is "trellis LEVELS DIM QUERIES" or "codes LEVELS DIM QUERIES"
#
# Needs Debian's packages (as ci/cross.sh arm64, with llvm) and Rust. Not part of CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-gnu
cargo=(cargo)
. ci/needed.sh
if ! [[ -d $(rustc --print target-libdir --target $target) ]]; then
  need rustc-web /usr/bin/rustc
  need libstd-rust-web-dev:arm64 /usr/lib/rustlib/$target/lib
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
fi
need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
need libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so
need qemu-user-static qemu-aarch64-static
compgen -c | grep -E '^llvm-mca-(1[89]|[2-9][0-9])$' >/dev/null || packages+=(llvm-19)
install_needed
version=${LLVM:-$(compgen -c | sed -n 's/^llvm-mca-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)}

export CARGO_TARGET_DIR=$PWD/target/cross/arm64 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
"${cargo[@]}" build --quiet --release --locked --target $target --manifest-path benches/mca/Cargo.toml
program=$CARGO_TARGET_DIR/$target/release/mca
[[ -e /lib/ld-linux-aarch64.so.1 ]] || export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
aarch64-linux-gnu-gcc -O3 -funroll-loops -march=armv8.2-a+dotprod+fp16 -Wall -Wextra -o "$CARGO_TARGET_DIR/ggml" benches/mca/ggml.c
cpus=(neoverse-n1 cortex-a55 cortex-a57 apple-m1 neoverse-v2)
# follow TITLE PROGRAM ARGUMENT...: prints a line of the table.
follow() {
  qemu-aarch64-static -cpu max -singlestep -d exec,nochain -D "$trace" "${@:2}"
  echo "$1,$(python3 benches/mca/predict.py "$2" "$trace" "$version" "${cpus[@]}")"
}
echo "LLVM $version; the lines of docs/plots/arm.csv:" >&2
echo "kernel,instructions,$(IFS=,; echo "${cpus[*]}")"
for kernel in score-f16 sum-f16 score-f16-f32 sum-f16-f32 score-q8_0 score-q4_0 sum-q8_0 sum-q4_0; do
  follow "ggml $kernel" "$CARGO_TARGET_DIR/ggml" "$kernel"
done
shapes=("codes 16 128" "trellis 4 128" "trellis 4 64" "trellis 8 64" "trellis 2 64")
(($#)) || for shape in "${shapes[@]}"; do set -- "$@" "$shape 1" "$shape 4"; done
for call in score sum; do
  for shape in "$@"; do
    for backend in neon-dotprod neon; do
      # shellcheck disable=SC2086 # several words
      follow "$call $shape $backend" "$program" $backend $call $shape
    done
  done
done
