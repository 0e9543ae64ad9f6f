#!/usr/bin/env bash
# Compares attention of one token with ggml's, for widths 64 and 128, and for 1, 4 and 7 query heads that share a key/value head.
# ggml is the prebuilt one of node-llama-cpp: its libraries for AVX2 (`haswell`) and AVX-512 (`sapphirerapids`, `zen4`). Prints CSV.
#
# usage: benches/peers/heads.sh [SECONDS]      3 seconds for each of its lines by default; x86-64 Linux
#
# Needs Rust, a C compiler and npm. Not part of CI. Run it on an idle machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-3}
target=$PWD/target/heads
mkdir -p "$target"
cargo build --release --quiet --locked -p octaplex-c
(cd "$target" && npm install --no-save --no-audit --no-fund --silent --ignore-scripts @node-llama-cpp/linux-x64@3.21.1)
libraries=$(echo "$target"/node_modules/@node-llama-cpp/linux-x64/bins/*/)
[[ -d $target/ggml ]] || ci/ggml.sh sources "$target/ggml" # for its headers: the functions are the same
codecs=(graded,trellis trellis,trellis turboquant,turboquant f16,f16)
grep -m1 "model name" /proc/cpuinfo
echo "backend,width,tokens,query heads,keys / values,ns,share"
newest=zen4
! grep -q amx_int8 /proc/cpuinfo || newest=sapphirerapids
for pair in avx2:haswell "avx512:$newest"; do
  backend=${pair%:*} ggml=${pair#*:}
  grep -q "${backend/avx512/avx512_vbmi}" /proc/cpuinfo || continue
  gcc -std=c11 -O2 -Wall -Wextra -I"$target/ggml/include" -Ibindings/c benches/peers/heads.c target/release/liboctaplex_c.a \
    -L"$libraries" "-l:libggml-cpu-$ggml.so" -l:libggml-base.so "-Wl,-rpath,$libraries" -lm -lpthread -ldl -o "$target/heads"
  for width in 128 64; do
    for tokens in 4096 32768; do
      for heads in 1 4 7; do "$target/heads" "$backend" "$width" "$tokens" "$heads" "$seconds" "${codecs[@]}"; done
    done
  done
done
