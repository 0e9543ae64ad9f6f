#!/usr/bin/env bash
# Compares attention with ggml's on f16, q8_0 and q4_0, for widths 64 and 128: one token on 1, 4 and 7 query heads that share a
# key/value head, and blocks of 512 tokens. For one token there are also plain loops on f16 rows (plain.c).
#
# ggml is the prebuilt one of node-llama-cpp: its libraries for AVX2 (`haswell`), AVX-VNNI (`alderlake`)
# and AVX-512 (`sapphirerapids`, `zen4`). Prints the CSV that docs/plots/heads.csv has, and the name of the CPU on stderr.
#
# usage: benches/peers/heads.sh [SECONDS] > docs/plots/heads.csv && python3 ci/tables.py --write
#
# A line takes 3 seconds by default, and long blocks up to 15. All take about six minutes. x86-64 Linux.
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
grep -m1 "model name" /proc/cpuinfo >&2
echo "instructions,width,tokens,query heads,queries,keys / values,ns,share of ggml f16"
newest=zen4
! grep -q amx_int8 /proc/cpuinfo || newest=sapphirerapids
for pair in avx2:haswell avx-vnni:alderlake "avx512:$newest"; do
  backend=${pair%:*} ggml=${pair#*:}
  case $backend in avx512) flag=avx512_vbmi ;; *) flag=${backend/-/_} ;; esac
  grep -qw "$flag" /proc/cpuinfo || continue
  flags=(-mavx2 -mfma -mf16c)
  [[ $backend != avx512 ]] || flags+=(-mavx512f)
  gcc -std=c11 -O3 "${flags[@]}" -Wall -Wextra -I"$target/ggml/include" -Ibindings/c benches/peers/heads.c target/release/liboctaplex_c.a \
    -L"$libraries" "-l:libggml-cpu-$ggml.so" -l:libggml-base.so "-Wl,-rpath,$libraries" -lm -lpthread -ldl -o "$target/heads"
  for width in 128 64; do
    for case in "4096 1 1" "32768 1 1" "131072 1 1" "4096 4 1" "4096 7 1" "32768 4 1" "4096 1 512" "32768 1 512"; do
      read -r tokens heads queries <<< "$case"
      "$target/heads" "$backend" "$width" "$tokens" "$heads" "$queries" "$seconds" "${codecs[@]}"
    done
  done
done
