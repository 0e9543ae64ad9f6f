#!/usr/bin/env bash
# The programs of an unmodified llama.cpp with octaplex's cache: llama-cli, llama-completion, llama-server (slots, prefixes,
# a draft model), llama-perplexity, llama-bench; and llama-cpp-python. By hand: builds llama.cpp from llama-cpp-python's source
# at PyPI, for AVX2. LLAMA_BIN names a folder with programs that are built.
#
# usage: ci/llama/programs.sh [MODEL.gguf]   by default SmolLM2 135M with f32 weights, from ci/llama.sh all
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$PWD/target/llama
library=$PWD/target/release/liboctaplex_ggml.so
model=$(realpath "${1:-$target/smollm2.gguf}")
python=$target/python/bin/python
bin=${LLAMA_BIN:-$target/build/bin}
source=$target/llama_cpp_python-0.3.36
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

[[ -s $model && -x $python ]] || { echo "run ci/llama.sh all first: it makes a Python environment and the model" >&2; exit 2; }
cargo build --release -p octaplex-ggml --locked --quiet
if [[ ! -d $source ]]; then
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$target" llama-cpp-python==0.3.36
  tar -xzf "$source.tar.gz" -C "$target"
fi
if [[ -z ${LLAMA_BIN:-} ]]; then
  say "llama.cpp"
  cmake -S "$source/vendor/llama.cpp" -B "$target/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_SUPPRESS_REGENERATION=ON >/dev/null
  cmake --build "$target/build" -j "$(nproc)" --target ggml-cpu llama-cli llama-completion llama-server llama-perplexity llama-bench >/dev/null
fi
export LD_LIBRARY_PATH=$bin OMP_WAIT_POLICY=passive GGML_NO_BACKTRACE=1
threads=${THREADS:-2}
common=(-m "$model" -t "$threads" -fa on -c 1024)
exact=(OCTAPLEX_KEYS=f16 OCTAPLEX_VALUES=f16)
prompt="The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"

plain() { # plain OUT COMMAND...: with llama.cpp's own cache
  (cd "$bin" && timeout 900 "${@:2}" >"$target/$1" 2>"$target/$1.log" </dev/null) || { tail -n 30 "$target/$1.log" >&2; return 1; }
}
with() { # with OUT NAME=VALUE... -- COMMAND...: with octaplex's
  local out=$1 settings=("GGML_BACKEND_PATH=$library")
  shift
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  (export "${settings[@]}"; plain "$out" "$@")
}
is_on() { # is_on OUT...: as the log says
  local out
  for out in "$@"; do
    cat "$target/$out" "$target/$out.log" | grep -q "OCTAPLEX KV buffer" || { echo "octaplex was not on in $out:" >&2; cat "$target/$out.log" >&2; return 1; }
  done
}
same() { diff "$target/$1" "$target/$2" && echo "   the same text with and without"; }

writes_the_same() { # writes_the_same OUT COMMAND...: the same text with exact rows as with llama.cpp's own cache; shows that of 3.2 bits
  plain "$1.base" "${@:2}"
  with "$1.exact" "${exact[@]}" -- "${@:2}"
  with "$1.bits" -- "${@:2}"
  is_on "$1.exact" "$1.bits"
  same "$1.base" "$1.exact"
  cat "$target/$1.bits"
}

if [[ -x $bin/llama-completion ]]; then
  say "llama-completion"
  writes_the_same completion ./llama-completion "${common[@]}" --temp 0 -n 24 -no-cnv --no-warmup -p "$prompt" -lv 4
fi

say "llama-cli"
text() { sed -n '/^> /,/^\[ Prompt/p' "$target/$1" | grep -v "^\[ Prompt" >"$target/$1.text"; }
command=(./llama-cli "${common[@]}" --temp 0 -n 24 -st --simple-io --no-warmup --log-file "$target/cli.file" -lv 4 -p "Name three colours.")
for run in base exact bits; do
  rm -f "$target/cli.file"
  case $run in
    base) plain cli.base "${command[@]}" ;;
    exact) with cli.exact "${exact[@]}" -- "${command[@]}" ;;
    bits) with cli.bits -- "${command[@]}" ;;
  esac
  [[ ! -s $target/cli.file ]] || cat "$target/cli.file" >>"$target/cli.$run.log"
  text cli.$run
done
is_on cli.exact cli.bits
same cli.base.text cli.exact.text
cat "$target/cli.bits.text"

say "llama-perplexity"
text=$PWD/../shared/data/text/wikitext2_raw_test.txt
[[ -s $text ]] || text=$PWD/docs/formats.md
head -c 20000 "$text" >"$target/text" # the program reads all of it into tokens first
command=(./llama-perplexity -m "$model" -t "$threads" -fa on -c 512 -b 512 -ub 64 --chunks 2 -lv 4 -f "$target/text")
# On a busy machine the program may end before its log is written, with and without octaplex: then it runs once more.
whole() { # whole OUT COMMAND...
  local out=$1
  for _ in 1 2 3 4 5; do
    "${@:2}"
    ! grep -q '\[2\]' "$target/$out" || return 0
  done
  echo "$out has no second chunk" >&2
  return 1
}
whole perplexity.base plain perplexity.base "${command[@]}"
whole perplexity.exact with perplexity.exact "${exact[@]}" -- "${command[@]}"
whole perplexity.bits with perplexity.bits -- "${command[@]}"
is_on perplexity.exact perplexity.bits
for run in base exact bits; do
  found=$(grep -o '\[2\][0-9.]*' "$target/perplexity.$run" | cut -d']' -f2) # the estimate behind the last chunk
  echo "   $run $found"
  case $run in
    base) base=$found ;;
    exact) "$python" -c "import sys; sys.exit(abs($found / $base - 1) > 0.001)" ;;
    bits) "$python" -c "import sys; sys.exit(abs($found / $base - 1) > 0.03)" ;;
  esac
done

say "llama-bench"
with bench.bits -- ./llama-bench -m "$model" -t "$threads" -fa 1 -p 64 -n 8 -r 1
grep "^|" "$target/bench.bits"
grep -q OCTAPLEX "$target/bench.bits" || cat "$target/bench.bits" "$target/bench.bits.log" | grep -q "octaplex\|OCTAPLEX"

say "llama-server: a shared prefix, two slots, a draft model"
serve() { # serve OUT ARGUMENT...
  local out=$1 server
  (cd "$bin" && exec timeout 900 ./llama-server -m "$model" -t "$threads" -fa on -c 2048 -np 2 --no-warmup -lv 4 --port 18461 "${@:2}") >"$target/$out.log" 2>&1 </dev/null &
  server=$!
  "$python" ci/llama/server.py 18461 $server >"$target/$out" || { kill $server || true; tail -n 40 "$target/$out.log" >&2; return 1; }
  kill $server
  wait $server || true
}
serve server.base
(export GGML_BACKEND_PATH=$library "${exact[@]}"; serve server.exact)
(export GGML_BACKEND_PATH=$library; serve server.bits)
(export GGML_BACKEND_PATH=$library "${exact[@]}"; serve server.split --no-kv-unified)
(export GGML_BACKEND_PATH=$library "${exact[@]}"; serve server.draft -md "$model" --spec-draft-n-max 4)
is_on server.exact server.bits server.split server.draft
for run in exact split; do
  "$python" ci/llama/answers.py "$target/server.base" "$target/server.$run" 3
done
"$python" ci/llama/answers.py "$target/server.base" "$target/server.bits" 0 # says how many; a made model's text turns on less
"$python" ci/llama/answers.py "$target/server.base" "$target/server.draft" 3 drafts
tail -n 1 "$target/server.bits"

say "llama-cpp-python"
[[ -d $target/binding ]] || "$python" -m venv "$target/binding"
"$target/binding/bin/python" -m pip install --quiet --disable-pip-version-check typing-extensions numpy diskcache jinja2
export LLAMA_CPP_LIB_PATH=$bin PYTHONPATH=$source
writes_the_same binding "$target/binding/bin/python" "$PWD/ci/llama/binding.py" "$model" "$prompt" "$threads"

say "a debug build of ggml, which asserts that a cache takes what it would in f16"
cmake -S "$source/vendor/llama.cpp" -B "$target/debug" -DCMAKE_BUILD_TYPE=Debug -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF \
  -DCMAKE_SUPPRESS_REGENERATION=ON >/dev/null
cmake --build "$target/debug" -j "$(nproc)" --target ggml-base >/dev/null
for folders in "$bin" "$target/debug/bin:$bin"; do
  LD_LIBRARY_PATH=$folders GGML_BACKEND_PATH=$library "$python" ci/llama/debug.py
done
