#!/usr/bin/env bash
# Tests caches on GPUs inside an unmodified, prebuilt llama.cpp (the wheel xllamacpp), on a machine without a GPU.
# ci/llama/standin.c is a GPU for llama.cpp that computes with its CPU backend. ci/hip-on-cpu runs octaplex's kernels. So all of
# bindings/ggml/src/cuda runs: sizes, cutting of graphs, inputs, cells, states, copies, streams, shifts.
#
# usage: ci/llama-gpu.sh [debug]     `debug` tests target/debug
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "ci/llama-gpu.sh: fibers are written for x86-64"; exit; }
profile=${1:-release} target=$PWD/target/llama
gpu=$target/gpu # not that of ci/hip-on-cpu.sh, which runs at the same time
library=$PWD/target/$profile/liboctaplex_ggml.so
mkdir -p "$gpu/lib"

. ci/llama/common.sh
say "the library, and a GPU that is none"
flags=()
[[ $profile == debug ]] || flags=(--release)
cargo build "${flags[@]}" -p octaplex-ggml --locked --quiet
command -v g++ >/dev/null || ci/install.sh g++
g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libamdhip64.so "-DGPU_H=\"$PWD/ci/hip-on-cpu/gpu.h\"" \
  ci/hip-on-cpu/stand_in.cpp -o "$gpu/lib/libamdhip64.so" -ldl
cp "$gpu/lib/libamdhip64.so" "$gpu/lib/libhiprtc.so"
gcc -std=c11 -O1 -Wall -Wextra -Werror -shared -fPIC ci/llama/standin.c -o "$target/standin.so" -ldl

export FIRST_BACKEND=$target/standin.so limit=900
export ROCM_PATH=$gpu OCTAPLEX_CACHE=$gpu/images
with() { (export GGML_BACKEND_PATH=$library OCTAPLEX_GPU=1; logits "$@"); } # the same with octaplex
without() { if grep "$1" "$target/log"; then return 1; fi; }
on() { grep -q "octaplex is on: .*stand-in" "$target/log" || { cat "$target/log" >&2; return 1; }; }

for kind in llama gemma2 mpt stablelm gpt-oss jamba; do
  model=$target/$kind.gguf
  "$python" ci/llama/made.py "$kind" "$model" >/dev/null
  for batch in 64 5; do # on opened rows, and on compressed pages
    say "$kind, a made model, in batches of $batch"
    logits "$model" - "$target/base.npy" --tokens 320 --flash 1 --ubatch $batch
    below kl 0.004 "$(with "$model" - "$target/out.npy" --tokens 320 --flash 1 --ubatch $batch --against "$target/base.npy")"
    on
  done
done

model=$target/llama.gguf
for test in rollback state copy streams shift unified together together-streams; do
  say "$test"
  logits "$model" - "$target/base.npy" --tokens 320 --flash 1 --test $test >/dev/null
  found=$(with "$model" - "$target/out.npy" --tokens 320 --flash 1 --test $test --against "$target/base.npy")
  below kl 0.02 "$found"
  [[ $test != copy && $test != streams ]] || below copied 1 "$found"
  on
done

say "a batch of a few tokens of several sequences"
for test in together together-streams; do
  logits "$model" - "$target/base.npy" --tokens 160 --flash 1 --ubatch 12 --test $test >/dev/null
  below kl 0.02 "$(with "$model" - "$target/out.npy" --tokens 160 --flash 1 --ubatch 12 --test $test --against "$target/base.npy")"
  on
done

say "a sequence whose keys are not finite"
"$python" ci/llama/made.py lame "$target/lame.gguf" >/dev/null
logits "$target/lame.gguf" - "$target/base.npy" --tokens 320 --flash 1 --test refused >/dev/null
found=$(with "$target/lame.gguf" - "$target/out.npy" --tokens 320 --flash 1 --test refused --against "$target/base.npy")
below kl 0.02 "$found"
for key in none_failed prompt_did_not_fail reused_failed; do below $key 0 "$found"; done
below again 0.1 "$found"
grep -q "not finite in f16, or too large for the codec" "$target/log"

say "compiled kernels are kept; damaged files are compiled anew, side by side"
rm -rf "$gpu/damaged" && cp -r "$gpu/images" "$gpu/damaged"
for file in "$gpu"/damaged/*.bin; do truncate -s -1 "$file"; done
for run in damaged kept; do
  (export OCTAPLEX_CACHE=$gpu/damaged; with "$model" - "$target/$run.npy" --tokens 96 --flash 1)
  on
  [[ $run == damaged ]] || break
  grep -o "compiling [2-9] sources of GPU kernels.*" "$target/log"
  grep -o "compiled them in .*" "$target/log"
done
without "compiling"
cmp "$target/damaged.npy" "$target/kept.npy"

say "what cannot be served stays llama.cpp's own, bit for bit"
own() { # own WORDS NAME=VALUE... -- ARGUMENT...: logits are equal, and the log says why
  local words=$1 settings=()
  shift
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  logits "$@" --tokens 96 >/dev/null
  cp "$target/out.npy" "$target/base.npy"
  found=$(export _=_ "${settings[@]}"; with "$@" --tokens 96 --against "$target/base.npy")
  below kl 0 "$found"
  grep -q "$words" "$target/log" || { cat "$target/log" >&2; return 1; }
}
own "left to CUDA, in f16, .*: llama.cpp runs MUL_MAT on it, without flash attention" -- "$model" - "$target/out.npy" --flash 0
own "left to CUDA, in f16: f16 rows are what CUDA has" OCTAPLEX_BITS=16 -- "$model" - "$target/out.npy" --flash 1
own "GGML_CUDA_GRAPH_OPT=1 splits graphs" GGML_CUDA_GRAPH_OPT=1 -- "$model" - "$target/out.npy" --flash 1
own "left to CUDA, in f16: no GPU driver" ROCM_PATH="$target" -- "$model" - "$target/out.npy" --flash 1
"$python" ci/llama/made.py llama120 "$target/llama120.gguf" >/dev/null
own "left to CUDA, in f16, " -- "$target/llama120.gguf" - "$target/out.npy" --flash 1 --context 256
own "left to CUDA, in f16, .*: GPUs take " OCTAPLEX_VALUES=q8_0 -- "$model" - "$target/out.npy" --flash 1
(unset OCTAPLEX_GPU; GGML_BACKEND_PATH=$library logits "$model" - "$target/out.npy" --tokens 96 --flash 1) # without the variable
without "octaplex is on"
