#!/usr/bin/env bash
# Builds and runs octaplex for machines other than this one:
#   arm64    tests under qemu, on a CPU without and on one with dot-product instructions
#   wasm     the bit-equality suite with SIMD128, and the trellis codec on 110,000 vectors, under Node
#   thumb    the library for a Cortex-M4, without std and without a heap, and a cache on an emulated one
#   lints    clippy and rustdoc for arm64 and WebAssembly, whose kernels the native ones do not see
#   same     one file, encoded and scored on each of them: the same bytes
# `ci/cross.sh` does all, `ci/cross.sh wasm` one. A target that rustup has is used; where it is missing, Debian's
# compiler (which carries arm64's standard library and the source to build the others) is installed and used.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

packages=()
need() { # need PACKAGE COMMAND-OR-FILE
  command -v "$2" >/dev/null || [[ -e $2 ]] || packages+=("$1")
}

install_packages() {
  ((${#packages[@]})) || return 0
  say "installing ${packages[*]}"
  local sudo=()
  [[ $(id -u) == 0 ]] || sudo=(sudo)
  [[ "${packages[*]}" != *:arm64* ]] || "${sudo[@]}" dpkg --add-architecture arm64
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" apt-get install -qq -y --no-install-recommends "${packages[@]}"
  packages=()
}

has_target() { [[ -d $(rustc --print target-libdir --target "$1") ]]; }

# Sets `cargo` to the command, with its subcommand's options in `options`, that builds for target $1.
choose_compiler() {
  cargo=(cargo)
  options=(--target "$1")
  if has_target "$1"; then return; fi
  need rustc-web /usr/bin/rustc
  case $1 in
    aarch64-*) need libstd-rust-web-dev:arm64 /usr/lib/rustlib/aarch64-unknown-linux-gnu/lib ;;
    *)
      need rust-web-src /usr/lib/rustlib/src/rust/library
      options+=(-Z build-std=core,alloc)
      ;;
  esac
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
}

# A directory for each: the compilers differ.
build_in() { export CARGO_TARGET_DIR=$PWD/target/cross/$1; }

arm64() {
  local target=aarch64-unknown-linux-gnu cpu arch_tests
  choose_compiler $target
  need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
  need libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so
  need qemu-user-static qemu-aarch64-static
  install_packages
  build_in arm64
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  # The loader and the C library must be of one version: the cross compiler's only where the system has none.
  [[ -e /lib/ld-linux-aarch64.so.1 ]] || export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
  # On a CPU with and on one without dot products: every kernel, the golden bytes, all codecs on all backends. What does
  # not depend on the instructions is tested natively; emulation is slow. Guard pages take most of it: the newer CPU, which
  # has the kernels of both, is enough for them.
  for cpu in cortex-a76:neon,neon-dotprod cortex-a53:neon; do
    arch_tests=(--lib --test equivalence --test contract)
    [[ $cpu != *dotprod ]] || arch_tests+=(--test guards)
    run_arm64 "${cpu%:*}" "${cpu#*:}" -p octaplex-arch "${arch_tests[@]}"
    run_arm64 "${cpu%:*}" "${cpu#*:}" -p octaplex --test suite -- golden:: backends:: adversarial
  done
  say "arm64: the tool"
  "${cargo[@]}" build --quiet --release "${options[@]}" -p octaplex-cli
}

# run_arm64 CPU BACKENDS WHAT... Examples in the documentation need the compiler's own rustdoc and run natively only.
run_arm64() {
  say "arm64: ${*:3} on $1, which must have $2"
  local tests=(--tests)
  [[ "$*" != *--test* ]] || tests=()
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $1" OCTAPLEX_REQUIRE=$2 RUST_BACKTRACE=0 \
    "${cargo[@]}" test --quiet "${tests[@]}" "${options[@]}" --features std "${@:3}"
}

wasm() {
  local target=wasm32-unknown-unknown
  choose_compiler $target
  has_target $target || need lld wasm-ld
  need nodejs node
  install_packages
  build_in wasm
  has_target $target || export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
  say "wasm: the suite with simd128"
  RUSTFLAGS="-C target-feature=+simd128" \
    "${cargo[@]}" build --quiet --release "${options[@]}" --manifest-path ci/portable/Cargo.toml
  local module=$CARGO_TARGET_DIR/$target/release/octaplex_portable.wasm
  OCTAPLEX_REQUIRE=simd128 node ci/portable/run.mjs "$module"
  OCTAPLEX_REQUIRE=simd128 node ci/portable/run.mjs "$module" trellis
}

thumb() {
  local target=thumbv7em-none-eabihf
  choose_compiler $target
  need qemu-system-arm qemu-system-arm
  need lld ld.lld
  install_packages
  build_in thumb
  say "thumb: octaplex without default features"
  "${cargo[@]}" build --quiet --release "${options[@]}" --no-default-features -p octaplex
  say "thumb: the example no_alloc on an emulated board, and here"
  local image=$CARGO_TARGET_DIR/$target/release/no_alloc
  (
    cd examples/no_alloc
    export CARGO_TARGET_THUMBV7EM_NONE_EABIHF_RUSTFLAGS="-C link-arg=-Tlink.x -C linker=ld.lld -L $PWD"
    "${cargo[@]}" build --quiet --release --locked "${options[@]}"
    CARGO_TARGET_DIR=$PWD/target cargo run --quiet --release --locked
  ) >"$CARGO_TARGET_DIR/here"
  timeout 300 qemu-system-arm -M mps2-an386 -cpu cortex-m4 -nographic \
    -semihosting-config enable=on,target=native -kernel "$image" </dev/null | tee "$CARGO_TARGET_DIR/board"
  diff "$CARGO_TARGET_DIR/here" "$CARGO_TARGET_DIR/board"
}

lints() {
  local target flags clippy
  for target in aarch64-unknown-linux-gnu wasm32-unknown-unknown; do
    choose_compiler $target
    clippy=(cargo clippy)
    if ! has_target $target; then
      need rust-web-clippy /usr/bin/clippy-driver
      clippy=("${cargo[@]:0:${#cargo[@]}-1}" RUSTDOC=/usr/bin/rustdoc /usr/bin/cargo-clippy clippy)
      cargo=("${cargo[@]:0:${#cargo[@]}-1}" RUSTDOC=/usr/bin/rustdoc cargo)
    fi
    install_packages
    build_in "lints-$target"
    flags="-D warnings"
    [[ $target != wasm32-* ]] || flags+=" -C target-feature=+simd128"
    say "lints: clippy for $target"
    RUSTFLAGS=$flags "${clippy[@]}" --quiet --locked "${options[@]}" -p octaplex-arch -p octaplex -- -D warnings
    say "lints: rustdoc for $target"
    RUSTFLAGS=$flags RUSTDOCFLAGS=$flags "${cargo[@]}" doc --quiet --no-deps --locked "${options[@]}" -p octaplex-arch -p octaplex
  done
}

# Encodes and scores one file on every machine and backend, and compares with this machine's specification.
same() {
  say "same: one file on every machine"
  local folder=$PWD/target/cross/same octaplex=$PWD/target/release/octaplex
  local arm=$PWD/target/cross/arm64/aarch64-unknown-linux-gnu/release/octaplex
  local module=$PWD/target/cross/wasm/wasm32-unknown-unknown/release/octaplex_portable.wasm
  (unset CARGO_TARGET_DIR; cargo build --quiet --release --locked -p octaplex-cli)
  mkdir -p "$folder"
  # Rows of normal-looking values, a few large coordinates, one constant row, one zero row.
  node -e '
    let state = 1;
    const uniform = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
    const x = Float32Array.from({ length: 192 * 640 }, (_, i) => uniform() + uniform() + uniform() - 1.5 + (i % 37 ? 0 : 8));
    x.fill(0.5, 0, 640).fill(0, 640, 1280);
    process.stdout.write(new Uint8Array(x.buffer));
  ' > "$folder/rows.f32"
  local backends spec dim machine
  mapfile -t backends < <("$octaplex" backends | awk '{print $1}')
  while read -r spec dim; do
    head -c $((4 * dim * 3)) "$folder/rows.f32" > "$folder/query.f32"
    head -c $((4 * dim * 128)) "$folder/rows.f32" > "$folder/in.f32"
    "$octaplex" encode "$spec" --dim "$dim" --backend scalar "$folder/in.f32" "$folder/expected"
    "$octaplex" score "$spec" --dim "$dim" --backend scalar --query "$folder/query.f32" "$folder/expected" "$folder/expected.f32"
    compare() { # compare MACHINE: its blocks and scores with the expected ones
      cmp "$folder/blocks" "$folder/expected" && cmp "$folder/scores.f32" "$folder/expected.f32" \
        || { echo "$1 differs: $spec, width $dim" >&2; exit 1; }
    }
    run() { # run MACHINE COMMAND...: encodes and scores with a build of the tool
      "${@:2}" encode "$spec" --dim "$dim" "${backend[@]}" "$folder/in.f32" "$folder/blocks"
      "${@:2}" score "$spec" --dim "$dim" "${backend[@]}" --query "$folder/query.f32" "$folder/blocks" "$folder/scores.f32"
      compare "$1"
    }
    for machine in "${backends[@]}"; do
      backend=(--backend "$machine")
      run "$machine" "$octaplex"
    done
    backend=()
    run "cortex-a53" qemu-aarch64-static -cpu cortex-a53 "$arm"
    run "cortex-a76" qemu-aarch64-static -cpu cortex-a76 "$arm"
    node ci/portable/run.mjs "$module" encode "$spec" "$dim" "$folder/in.f32" "$folder/blocks"
    node ci/portable/run.mjs "$module" score "$spec" "$dim" "$folder/query.f32" "$folder/blocks" "$folder/scores.f32"
    compare "WebAssembly"
    echo "$spec, width $dim: ${backends[*]} cortex-a53 cortex-a76 WebAssembly agree"
  done < ci/same.txt
}

machines=("$@")
((${#machines[@]})) || machines=(arm64 wasm thumb lints same)
for machine in "${machines[@]}"; do
  case $machine in
    arm64 | wasm | thumb | lints | same) (time -p "$machine") ;;
    *)
      echo "usage: ci/cross.sh [arm64] [wasm] [thumb] [lints] [same]" >&2
      exit 2
      ;;
  esac
done
say "passed: ${machines[*]}"
