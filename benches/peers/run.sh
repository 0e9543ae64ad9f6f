#!/usr/bin/env bash
# Compares this library with ggml, tq-kv, ruvector-turboquant, turboquant-rs, bitpolar and candle-nn on one core of this machine. It
# builds ggml, the peers and the comparison for each instruction set that the CPU has, runs it, prints the tables and writes peers-avx2.json, peers-avx512.json into the folder
# `target` here. Needs Rust, a C++ compiler and CMake. Not part of CI. Words choose sections, all without one: encode, decode, score,
# memory, sums, step, prefill.
set -euo pipefail
for word in "$@"; do
  case $word in
    encode | decode | score | memory | sums | step | prefill) ;;
    *)
      echo "usage: run.sh [encode] [decode] [score] [memory] [sums] [step] [prefill]; there is no $word" >&2
      exit 2
      ;;
  esac
done
cd "$(dirname "$0")"
grep -q avx2 /proc/cpuinfo || { echo "a CPU with AVX2 is needed" >&2; exit 1; }
grep -m1 "model name" /proc/cpuinfo
sets=avx2
if grep -q avx512_vnni /proc/cpuinfo && grep -q avx512_vbmi /proc/cpuinfo; then sets="avx512 avx2"; fi
for isa in $sets; do
  PEERS_ISA=$isa cargo build --quiet --release --locked --target-dir "target/$isa"
done
for isa in $sets; do
  "target/$isa/release/octaplex-peers" --json "target/peers-$isa.json" "$@"
done
