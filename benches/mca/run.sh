#!/usr/bin/env bash
# Predicts cycles a row on ARM cores, for scores (one query) and sums of 256 rows of width 128. qemu records every instruction of a
# codec's call, and llvm-mca predicts their cycles. It assumes that every load hits the cache and every jump is predicted.
#
# LLVM has no model of the Cortex-A76. Up to version 22 it uses that of the A57, where a look-up of 16 bytes is three operations, and
# from 23 on that of the Neoverse N1, the server core with the same design. Both are named below, so LLVM's version does not matter.
#
# usage: run.sh [CODEC...]      Needs Debian's packages (as ci/cross.sh arm64, with llvm) and Rust. Not part of CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-gnu
cargo=(cargo)
packages=()
need() { # need PACKAGE COMMAND-OR-FILE
  command -v "$2" >/dev/null || [[ -e $2 ]] || packages+=("$1")
}
if ! [[ -d $(rustc --print target-libdir --target $target) ]]; then
  need rustc-web /usr/bin/rustc
  need libstd-rust-web-dev:arm64 /usr/lib/rustlib/$target/lib
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
fi
need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
need libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so
need qemu-user-static qemu-aarch64-static
[[ -n $(compgen -c | grep -E '^llvm-mca-(1[89]|[2-9][0-9])$') ]] || packages+=(llvm-19)
((!${#packages[@]})) || ci/install.sh "${packages[@]}"
version=$(compgen -c | sed -n 's/^llvm-mca-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)

export CARGO_TARGET_DIR=$PWD/target/cross/arm64 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
"${cargo[@]}" build --quiet --release --locked --target $target --manifest-path benches/mca/Cargo.toml
program=$CARGO_TARGET_DIR/$target/release/mca
[[ -e /lib/ld-linux-aarch64.so.1 ]] || export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
cpus=(neoverse-n1 cortex-a57 cortex-a55)
echo "| LLVM $version | backend | instructions | ${cpus[0]} | ${cpus[1]} | ${cpus[2]} |"
echo "|---|---|---|---|---|---|"
(($#)) || set -- turboquant:bits=4 turboquant:bits=3 turboquant:bits=2 trellis:m=4 trellis:m=2 int
for call in score sum; do
  for codec in "$@"; do
    for backend in neon-dotprod neon; do
      qemu-aarch64-static -cpu cortex-a76 -singlestep -d exec,nochain -D "$trace" "$program" $backend "$codec" $call
      echo "| $call, \`$codec\` | $backend | $(python3 benches/mca/predict.py "$program" "$trace" "$version" "${cpus[@]}") |"
    done
  done
done
