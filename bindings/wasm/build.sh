#!/usr/bin/env bash
# Builds the modules of the npm package into js/: with the recommended codecs and with all, with SIMD128 and without. Then it
# writes the demo into site/, for any static file server: the files of demo/, the package, the sample of `octaplex compare` and
# the published checksums.
#
# usage: build.sh
#        build.sh one FILE              builds the module of one codec
#        build.sh bench FILE [plain]    builds the module of bench/
#
# It needs a Rust that has the target wasm32-unknown-unknown. OCTAPLEX_RUSTFLAGS has more flags for all modules.
set -euo pipefail
package=$(cd "$(dirname "$0")" && pwd)
root=$package/../..
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/cross/npm}
target=wasm32-unknown-unknown

cargo=(cargo)
options=(--quiet --release --locked --target "$target")
if ! [[ -d $(rustc --print target-libdir --target $target) ]]; then
  [[ -d /usr/lib/rustlib/src/rust/library ]] || { echo "rustup target add $target, or apt-get install rustc-web rust-web-src lld" >&2; exit 1; }
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
  options+=(-Z build-std=core,alloc)
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
fi

build() { # build FLAGS FILE OPTIONS...: a module, with these flags of the compiler
  echo "building ${2##*/}" >&2
  RUSTFLAGS="$1 ${OCTAPLEX_RUSTFLAGS:-}" "${cargo[@]}" build "${options[@]}" --manifest-path "${manifest:-$package/Cargo.toml}" "${@:3}"
  cp "$CARGO_TARGET_DIR/$target/release/${module:-octaplex_wasm}.wasm" "$2"
}

case ${1:-} in
  one) CARGO_PROFILE_RELEASE_OPT_LEVEL=s build "" "$2" --no-default-features --features turboquant ;;
  bench)
    flags="-C target-feature=+simd128"
    [[ ${3:-} != plain ]] || flags=
    manifest=$package/bench/Cargo.toml module=bench build "$flags" "$2"
    ;;
  "")
    build "-C target-feature=+simd128" "$package/js/octaplex.simd.wasm"
    build "" "$package/js/octaplex.wasm"
    build "-C target-feature=+simd128" "$package/js/octaplex.all.simd.wasm" --no-default-features --features all
    build "" "$package/js/octaplex.all.wasm" --no-default-features --features all
    site=$package/site
    rm -rf "$site"
    mkdir -p "$site/octaplex" "$site/data"
    cp "$package"/demo/* "$site"
    cp "$package"/js/*.js "$package"/js/*.wasm "$site/octaplex"
    cp "$root"/LICENSE-* "$site"
    cp "$root/cli/data/sample.safetensors" "$site/data"
    cp "$root/cli/data/README.txt" "$site/data/sample.txt"
    cp "$root/src/verify/expected.txt" "$site/data"
    ;;
  *) echo "usage: build.sh [one FILE | bench FILE [plain]]" >&2; exit 1 ;;
esac
