#!/usr/bin/env bash
# Measures what octaplex takes in the small programs of ci/sizes: flash of a Cortex-M4 (code and constants), and gzipped
# WebAssembly.
#
# usage: ci/sizes.sh            fails if a size is more than 10% above ci/sizes.txt, or 20% with rustup's compiler
#        ci/sizes.sh --bless    rewrites the table
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
here=$PWD table=$PWD/ci/sizes.txt
export CARGO_TARGET_DIR=$here/target/cross/sizes

# The table's sizes have a `core` that is built for size, like the rest. rustup's `core` is built for speed, and makes programs a
# tenth larger.
cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo) options=(-Z build-std=core) most=1.1
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
[[ -d /usr/lib/rustlib/src/rust/library ]] || { cargo=(cargo) options=() most=1.2; unset CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER; }

build() { # build TARGET PROGRAM LIBRARY
  "${cargo[@]}" rustc --quiet --release --locked --target "$1" "${options[@]}" --manifest-path ci/sizes/Cargo.toml --features "$2" --crate-type "$3"
}

flash() { # flash PROGRAM: prints the bytes of code and constants that a linker keeps, from the program's one entry
  build thumbv7em-none-eabihf "$1" staticlib
  local folder=$CARGO_TARGET_DIR/thumbv7em-none-eabihf/release
  ld.lld -m armelf --gc-sections --entry octaplex_run --undefined octaplex_run -o "$folder/$1.elf" "$folder/libsizes.a"
  size "$folder/$1.elf" | awk 'NR == 2 { print $1 + $2 }'
}

wasm() { # wasm PROGRAM: prints the bytes of the gzipped module
  build wasm32-unknown-unknown "$1" cdylib
  gzip -9 -n -c "$CARGO_TARGET_DIR/wasm32-unknown-unknown/release/sizes.wasm" | wc -c
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
printf '%-8s %8s %8s   bytes: Cortex-M4 flash, gzipped WebAssembly\n' program flash wasm >"$new"
for program in codec cache two family any; do
  flash=$(flash "$program") # of its own: a build that fails ends the script
  wasm=$(wasm "$program")
  printf '%-8s %8s %8s\n' "$program" "$flash" "$wasm" >>"$new"
done
cat "$new"
if [[ ${1:-} == --bless ]]; then
  cp "$new" "$table"
  exit
fi
awk -v most=$most 'FNR > 1 && NR == FNR { flash[$1] = $2; wasm[$1] = $3; next }
  FNR > 1 && ($2 > most * flash[$1] || $3 > most * wasm[$1]) { print $1 " is more than " most " times as large as the table says"; bad = 1 }
  END { exit bad }' "$table" "$new"
