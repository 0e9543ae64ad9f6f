#!/usr/bin/env bash
# Tests the example on ggml, bindings/c/examples/ggml. It runs the commands of its README on the two-layer model of the tool's
# tests. Then it compares the program's perplexity and KL with those of `octaplex perplexity` on the same tokens.
#
# usage: PREFIX=FOLDER ci/ggml.sh      FOLDER is where octaplex is installed; `ci/c.sh` installs it and runs this script
#        ci/ggml.sh sources FOLDER     only fetches ggml's sources
#
# OCTAPLEX_MODEL and OCTAPLEX_TEXT name a real model and a text, to compare on them too.
set -euo pipefail
cd "$(dirname "$0")/.."

# This crate contains ggml 0.26.0, with llama.cpp as of November 2026. No lock file names it, so Cargo does not check it, and
# this script compares its checksum.
crate=llama-cpp-sys-2 version=0.1.161 sum=e9bea77fde41bbc15a278891cd5edd2ba07c5260d162614b41080ba1f100b39b
sources() {
  local archive folder=$1
  [[ ! -e $folder/CMakeLists.txt ]] || return 0
  (cd / && cargo info --quiet --registry crates-io "$crate@$version" >/dev/null)
  archive=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "$crate-$version.crate" -print -quit)
  echo "$sum  $archive" | sha256sum --check --quiet
  mkdir -p "$folder"
  tar -xzf "$archive" -C "$folder" --strip-components=3 "$crate-$version/llama.cpp/ggml"
}
if [[ ${1:-} == sources ]]; then
  sources "${2:?ci/ggml.sh sources FOLDER}"
  exit
fi
folder=$PWD/target/ggml
mkdir -p "$folder"
export PREFIX LD_LIBRARY_PATH=$PREFIX/lib GGML=$folder/ggml BUILD=$folder/build

if [[ -n ${OCTAPLEX_MODEL:-} ]]; then
  octaplex() { cargo run --quiet --release --locked -p octaplex-cli --features models -- "$@"; }
else
  octaplex() { ci/tool.sh octaplex "$@"; }
fi
export -f octaplex
# check SPEC PERPLEXITY KL: runs both programs on $MODEL and $TEXT, with keys and values of this spec. Their perplexities, and
# their divergences from f16, may differ by these shares of themselves.
#
# The weights are the same floats (--f32), and equal rows become equal bytes. But ggml adds products in another order and
# computes the angles of RoPE in 32 bits. So rows differ in their last bits, and now and then a value gets another code. In two
# layers this hardly matters. In thirty it grows from layer to layer, until the errors of the codes are different errors of the
# same size, as with another seed of the rotation. Then only their size is comparable, and the results with f16, which has no codes.
check() {
  local spec=$1 tool=$folder/tool.json found=$folder/found tokens=$folder/tokens.txt
  octaplex perplexity --model "$MODEL" --text "$TEXT" --tokens 516 --calibrate 0 --k "$spec" --v "$spec" --write-tokens "$tokens" --json "$tool" >/dev/null
  run() { "$BUILD/octaplex-ggml" "$MODEL" "$tokens" --tokens 516 --f32 --k "$spec" --v "$spec" --threads "$1"; }
  run 1 >"$found"
  # Threads share a batch's queries, and the heads of the last batch, which is one token; the logits keep their bits.
  run 3 | diff "$found" -
  awk -v spec="$spec" -v perplexity="$2" -v kl="${3:-0}" '
    function check(name, of_tool, most) {
      far = ggml[name] / tool[of_tool] - 1
      printf "%-16s %-16s %s, the tool has %s: %.1e apart, at most %.1e\n", spec, name, ggml[name], tool[of_tool], far, most
      if (far > most || far < -most) wrong = 1
    }
    FNR == NR { if (match($0, /"[a-z0-9_]+": [-+0-9.e]+/)) { split(substr($0, RSTART + 1, RLENGTH - 1), pair, /": /); tool[pair[1]] = pair[2] } next }
    { ggml[$1] = $2 }
    END {
      check("perplexity", "perplexity", perplexity)
      check("perplexity_ggml", "perplexity_f16", 5e-4) # flash attention adds weighted values up in f16
      check("kv_bytes", "kv_bytes", 0)
      if (spec == "f16") { tool["f16"] = 1e-5; check("kl_mean", "f16", 1) } else check("kl_mean", "kl_mean", kl)
      exit wrong
    }' "$tool" "$found"
}

ci/tool.sh tiny_model "$folder/tiny.gguf" "$folder/tiny.txt"
export MODEL=$folder/tiny.gguf TEXT=$folder/tiny.txt
TOKENS=$folder/tokens.txt ci/printed.sh bindings/c/examples/ggml/README.md >"$folder/log" 2>&1 || { tail -40 "$folder/log" >&2; exit 1; }
check f16 1e-5
check turboquant:bits=8 2e-4 .01
check trellis 5e-4 .01
"$BUILD/octaplex-ggml-speed" "$MODEL" --depth 300 --batch 70 --times 1 | grep -c octaplex | grep -qx 3 # it runs; times are not checked
all=$(octaplex verify | awk '$1 == "all" { print $2 }')
grep "^octaplex_verify *$all " "$folder/found"
if [[ -n ${OCTAPLEX_MODEL:-} ]]; then
  MODEL=$OCTAPLEX_MODEL TEXT=${OCTAPLEX_TEXT:?a text for OCTAPLEX_MODEL}
  check f16 1e-4
  check turboquant:bits=8 1e-3 1
  check trellis .01 .25
fi
