#!/usr/bin/env bash
# Builds and tests octaplex for other machines than this one:
#   arm64    kernels' tests and the C interface under qemu, on a CPU with dot products of bytes and on one without
#   s390x    the C interface under qemu, on a big-endian machine
#   wasm     kernels against the specification with SIMD128, and the trellis codec on 110,000 vectors, under Node
#   thumb    the library for a Cortex-M4 without std and heap, and a cache on an emulated one
#   no_cas   the library for a Cortex-M0, which lacks compare-and-swap: it builds without a heap, and the feature `alloc`
#            is one clear error
#   lints    clippy and rustdoc for arm64 and WebAssembly, whose kernels native lints do not see
#   i686     the suite on a 32-bit machine, natively
#
# usage: ci/cross.sh               all except i686, which takes seven minutes; WebAssembly and Cortex-M have 32 bits too
#        ci/cross.sh MACHINE...    these machines: `ci/cross.sh wasm i686`
#
# All except no_cas and lints compare the checksums of every codec's bytes and results with the table of `octaplex verify`.
# arm64 and s390x use development builds.
#
# It uses rustup's targets. If one is missing, it installs Debian's compiler, which has arm64's standard library, and the
# source to build the others.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/needed.sh

say() { printf '\n== %s\n' "$*"; }

has_target() { [[ -d $(rustc --print target-libdir --target "$1") ]]; }

choose_compiler() { # choose_compiler TARGET [test]: sets `cargo` to the command that builds for it, and `options` to its subcommand's options
  cargo=(cargo)
  options=(--target "$1")
  if has_target "$1"; then return; fi
  need rustc-web /usr/bin/rustc
  case $1 in
    aarch64-*) need libstd-rust-web-dev:arm64 /usr/lib/rustlib/aarch64-unknown-linux-gnu/lib ;;
    s390x-* | i686-*)
      need rust-web-src /usr/lib/rustlib/src/rust/library
      options+=(-Z build-std=std,panic_unwind${2:+,test})
      ;;
    *)
      need rust-web-src /usr/lib/rustlib/src/rust/library
      options+=(-Z build-std=core,alloc)
      ;;
  esac
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
}

# Machines have folders of their own, because their compilers differ.
build_in() { export CARGO_TARGET_DIR=$PWD/target/cross/$1; }

arm64() {
  local target=aarch64-unknown-linux-gnu cpu
  choose_compiler $target
  need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
  need g++-aarch64-linux-gnu aarch64-linux-gnu-g++
  need libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so
  need qemu-user-static qemu-aarch64-static
  install_needed
  build_in arm64
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  # The loader and the C library must have the same version. So use the cross compiler's only if the system has none.
  [[ -e /lib/ld-linux-aarch64.so.1 ]] || export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
  # The newer CPU runs every kernel, with dot products and without. The older one would stop at an instruction that it lacks; it runs
  # the checksums of every codec and the contract tests. Emulation is slow, so tests that do not depend on instructions run natively.
  say "arm64: the C interface"
  # With the features of the tests, so that the library is built once.
  "${cargo[@]}" build --quiet "${options[@]}" -p octaplex-arch -p octaplex-c --lib --test contract
  for cpu in cortex-a76 cortex-a53; do
    interface "$target" aarch64-linux-gnu-gcc qemu-aarch64-static -cpu "$cpu"
  done
  say "arm64: the C++ example, natively and emulated"
  cargo build --quiet --locked --target-dir target -p octaplex-arch -p octaplex-c --lib
  local compiler here
  for compiler in g++ aarch64-linux-gnu-g++; do
    here=target/debug
    [[ $compiler == g++ ]] || here=$CARGO_TARGET_DIR/$target/debug
    "$compiler" -std=c++17 -O1 -Wall -Wextra -Werror -Ibindings/c bindings/c/examples/engine.cpp "$here/liboctaplex_c.a" -lpthread -ldl -lm \
      -o "$CARGO_TARGET_DIR/engine-$compiler"
  done
  qemu-aarch64-static -cpu cortex-a53 "$CARGO_TARGET_DIR/engine-aarch64-linux-gnu-g++" | tee "$CARGO_TARGET_DIR/engine"
  "$CARGO_TARGET_DIR/engine-g++" | diff "$CARGO_TARGET_DIR/engine" -
  # Each long test has one thread. They run side by side, and their outputs follow one another.
  local kernels=(-p octaplex-arch --features std,alloc --test parts --test contract) newer=$CARGO_TARGET_DIR/newer
  # The tests with guard pages compare kernels with the specification too. `layout` loads rows of every width.
  run_arm64 cortex-a76 neon,neon-dotprod "${kernels[@]}" --test guards --test layout >"$newer" 2>&1 &
  run_arm64 cortex-a53 neon "${kernels[@]}"
  wait "$!" || { cat "$newer"; echo "failed on a Cortex-A76" >&2; exit 1; }
  cat "$newer"
}

# interface TARGET COMPILER EMULATOR...: runs the C interface's test, and the checksums of all codecs on every backend.
interface() {
  local program=$CARGO_TARGET_DIR/interface
  say "$1: the C interface and checksums, ${*:3}"
  "$2" -std=c11 -O1 -Wall -Wextra -Werror -Ibindings/c bindings/c/tests/interface.c "$CARGO_TARGET_DIR/$1/debug/liboctaplex_c.a" -lpthread -ldl -lm -o "$program"
  "${@:3}" "$program"
  "${@:3}" "$program" verify
}

# run_arm64 CPU BACKENDS ARGUMENT...: runs `cargo test` on an emulated CPU, which must have these backends.
run_arm64() {
  say "arm64: ${*:3} on $1, which must have $2"
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $1" OCTAPLEX_REQUIRE=$2 RUST_BACKTRACE=0 \
    "${cargo[@]}" test --quiet "${options[@]}" "${@:3}"
}

wasm() {
  local target=wasm32-unknown-unknown
  choose_compiler $target
  has_target $target || need lld wasm-ld
  need nodejs node
  install_needed
  build_in wasm
  has_target $target || export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
  local module=$CARGO_TARGET_DIR/$target/release/octaplex_portable.wasm
  # ci/wasm.sh compares the checksums without simd128 too.
  say "wasm: checksums and the suite with simd128"
  RUSTFLAGS="-C target-feature=+simd128" \
    "${cargo[@]}" build --quiet --release "${options[@]}" --manifest-path ci/portable/Cargo.toml
  OCTAPLEX_REQUIRE=simd128 node ci/portable/run.mjs "$module" verify
  OCTAPLEX_REQUIRE=simd128 node ci/portable/run.mjs "$module"
  OCTAPLEX_REQUIRE=simd128 node ci/portable/run.mjs "$module" trellis
}

s390x() {
  local target=s390x-unknown-linux-gnu
  choose_compiler $target
  need gcc-s390x-linux-gnu s390x-linux-gnu-gcc
  need libc6-dev-s390x-cross /usr/s390x-linux-gnu/lib/libc.so
  need qemu-user-static qemu-s390x-static
  install_needed
  build_in s390x
  export CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_LINKER=s390x-linux-gnu-gcc QEMU_LD_PREFIX=/usr/s390x-linux-gnu
  "${cargo[@]}" build --quiet "${options[@]}" -p octaplex-c
  interface $target s390x-linux-gnu-gcc qemu-s390x-static
}

i686() {
  local target=i686-unknown-linux-gnu gcc
  gcc=$(gcc -dumpversion | cut -d. -f1)
  choose_compiler $target test
  need "lib32gcc-$gcc-dev" "/usr/lib/gcc/x86_64-linux-gnu/$gcc/32/libgcc.a"
  need libc6-dev-i386 /usr/lib32/libc.so
  install_needed
  build_in i686
  say "i686: the suite"
  "${cargo[@]}" test --quiet --locked "${options[@]}" -p octaplex --test suite
}

thumb() {
  local target=thumbv7em-none-eabihf
  choose_compiler $target
  need qemu-system-arm qemu-system-arm
  need lld ld.lld
  install_needed
  build_in thumb
  mkdir -p "$CARGO_TARGET_DIR"
  # Replaces `cargo` in the README's commands: Debian's compiler if rustup's lacks the target, and a time limit for programs that hang.
  export STANDS_IN=
  has_target $target || STANDS_IN=${options[*]:2}
  cargo() {
    local stands_in=()
    [[ -z $STANDS_IN || " $* " != *" --target "* ]] || stands_in=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER=ld.lld)
    # shellcheck disable=SC2086 # several words
    "${stands_in[@]}" timeout 600 cargo "$1" ${stands_in:+$STANDS_IN} "${@:2}"
  }
  export -f cargo
  say "thumb: the lines of the example no_alloc, here and on an emulated Cortex-M4"
  on_both no_alloc
  say "thumb: checksums on an emulated Cortex-M4"
  (cd examples/no_alloc && cargo run --quiet --release --locked --target $target --bin verify)
  say "thumb: the lines of the example firmware, here and on an emulated Cortex-M4"
  on_both firmware
  local image=$CARGO_TARGET_DIR/$target/release/firmware
  firmware_sizes "$image"
  say "thumb: the firmware with the stack that its README states, $(stated stack) bytes, behind which its statics lie"
  local start=$((0x20000000 + ($(static_memory "$image") + $(stated stack)) / 8 * 8))
  # Built from another folder, where Cargo does not read the example's settings. The image must still be complete.
  cargo rustc --quiet --release --locked --target $target --manifest-path examples/firmware/Cargo.toml -- -C "link-arg=--defsym=_stack_start=$start"
  timeout 300 qemu-system-arm -M mps2-an386 -cpu cortex-m4 -nographic -semihosting-config enable=on,target=native -kernel "$image" \
    </dev/null >"$CARGO_TARGET_DIR/printed"
  ci/printed.sh examples/firmware/README.md text - | diff - "$CARGO_TARGET_DIR/printed"
}

# on_both EXAMPLE: runs the commands of its README, which must print the README's output twice.
on_both() {
  local expected said
  expected=$(ci/printed.sh "examples/$1/README.md" text -)
  said=$(ci/printed.sh "examples/$1/README.md")
  echo "$said"
  [[ $said == *"$expected"$'\n'"$expected"* ]] || { echo "this is not twice the output in examples/$1/README.md" >&2; exit 1; }
}

# stated NAME: prints a number of the README's table.
stated() { awk -F'|' -v name="$1" '$2 ~ name { gsub(/[ ,]/, "", $3); print $3 }' examples/firmware/README.md; }

static_memory() { size -A "$1" | awk '$1 ~ /^\.(data|bss|uninit)$/ { sum += $2 } END { print sum }'; }

# firmware_sizes IMAGE: compares flash and static memory of the firmware with the table of its README. Its memory.x leaves more
# stack than the table says.
firmware_sizes() {
  local flash memory name
  flash=$(size -A "$1" | awk '$1 ~ /^\.(vector_table|text|rodata|data)$/ { sum += $2 } END { print sum }')
  memory=$(static_memory "$1")
  say "thumb: the firmware takes $flash bytes of flash and $memory of static memory"
  for name in flash memory; do
    ((${!name} <= $(stated $name) * 11 / 10 && ${!name} >= $(stated $name) * 9 / 10)) \
      || { echo "examples/firmware/README.md says $(stated $name) bytes of $name" >&2; exit 1; }
  done
}

no_cas() {
  local target=thumbv6m-none-eabi said
  choose_compiler $target
  install_needed
  build_in no_cas
  say "no_cas: without the feature alloc, it builds"
  "${cargo[@]}" check --quiet --locked "${options[@]}" -p octaplex --no-default-features
  say "no_cas: with it, the only error names the feature"
  ! said=$("${cargo[@]}" check --quiet --locked "${options[@]}" -p octaplex 2>&1) || { echo "it builds" >&2; exit 1; }
  echo "$said"
  [[ $(grep -c '^error: octaplex.s feature `alloc` needs atomic compare-and-swap' <<<"$said") == 1 && $(grep -c '^error' <<<"$said") == 2 ]]
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
    install_needed
    build_in "lints-$target"
    flags="-D warnings"
    [[ $target != wasm32-* ]] || flags+=" -C target-feature=+simd128"
    say "lints: clippy for $target"
    RUSTFLAGS=$flags "${clippy[@]}" --quiet --locked "${options[@]}" -p octaplex-arch -p octaplex -- -D warnings
    say "lints: rustdoc for $target"
    RUSTFLAGS=$flags RUSTDOCFLAGS=$flags "${cargo[@]}" doc --quiet --no-deps --locked "${options[@]}" -p octaplex-arch -p octaplex
  done
}

machines=("$@")
((${#machines[@]})) || machines=(arm64 s390x wasm thumb no_cas lints)
for machine in "${machines[@]}"; do
  case $machine in
    arm64 | s390x | wasm | i686 | thumb | no_cas | lints) (time -p "$machine") ;;
    *)
      echo "usage: ci/cross.sh [arm64] [s390x] [wasm] [i686] [thumb] [no_cas] [lints]" >&2
      exit 2
      ;;
  esac
done
say "passed: ${machines[*]}"
