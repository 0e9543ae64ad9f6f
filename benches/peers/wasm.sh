#!/usr/bin/env bash
# Compares the 4-bit score with ggml's q4_0, both built for WebAssembly with and without SIMD128, under Node. Prints a table.
# Debian's clang compiles ggml with wasi-libc. Needs Rust, and Debian if packages are missing. Not part of CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
. ci/needed.sh
need clang clang
need lld wasm-ld
need wasi-libc /usr/include/wasm32-wasi/stdio.h
need nodejs node
if ! [[ -d $(rustc --print target-libdir --target wasm32-unknown-unknown) ]]; then
  need rustc-web /usr/bin/rustc
  need rust-web-src /usr/lib/rustlib/src/rust/library
fi
install_needed

folder=$PWD/benches/peers/target/wasm
ggml=$folder/ggml
mkdir -p "$folder"
ci/ggml.sh sources "$ggml"
peer() { # peer FILE FLAGS...
  clang --target=wasm32-wasi -O3 -DNDEBUG -ffunction-sections "${@:2}" -I"$ggml/include" -I"$ggml/src" -I"$ggml/src/ggml-cpu" \
    benches/peers/wasm/ggml.c "$ggml/src/ggml-quants.c" "$ggml/src/ggml-cpu/arch/wasm/quants.c" \
    -nostartfiles -nodefaultlibs -lc -Wl,--no-entry,--gc-sections,--export=rows,--export=score,--export=scores -o "$1"
}
peer "$folder/ggml-simd.wasm" -msimd128
peer "$folder/ggml-plain.wasm"
export CARGO_TARGET_DIR=$folder/octaplex
bindings/wasm/build.sh bench "$folder/simd.wasm"
bindings/wasm/build.sh bench "$folder/plain.wasm" plain
clang --version | head -n 1
grep -m1 "model name" /proc/cpuinfo
node benches/peers/wasm/score.mjs "ggml q4_0, SIMD128=$folder/ggml-simd.wasm" "ggml q4_0, plain=$folder/ggml-plain.wasm" \
  "\`turboquant\`, SIMD128=$folder/simd.wasm" "\`turboquant\`, plain=$folder/plain.wasm"
