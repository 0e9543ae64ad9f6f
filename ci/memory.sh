#!/usr/bin/env bash
# Looks for undefined behaviour, on the nightly compiler:
#   miri        interprets the specification, a cache of f16 and its snapshots; Miri knows no vector instructions
#   codecs      interprets caches of compressed keys and values with Miri
#   address     runs every kernel of every backend of this CPU with AddressSanitizer. Two things in .ci/run look for the same:
#               arch/tests/guards.rs without a sanitizer, and the fuzz target `backends` with it.
#   thread      runs attention and chunks on several threads with ThreadSanitizer
#   valgrind    runs the C example in valgrind, which checks every byte that it reads
#
# usage: ci/memory.sh             miri; the others take minutes
#        ci/memory.sh CHECK...    these checks: `ci/memory.sh thread valgrind`
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
nightly() {
  rustc +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
  [[ $# == 0 ]] || rustup component add --toolchain nightly "$@"
}

miri() {
  nightly miri rust-src
  export CARGO_TARGET_DIR=$PWD/target/memory/miri MIRIFLAGS=-Zmiri-disable-isolation
  unset OCTAPLEX_REQUIRE # Miri can interpret the specification only
  # Miri is a thousand times slower. tests/small.rs has tests that are small enough for it. Five tests of kernels are left out:
  # they compute hundreds of thousands of values.
  cargo +nightly miri test --quiet --locked -p octaplex-arch --test parts -- \
    --skip exp_is_within_its_error --skip caps_are_within_their_error --skip units_by_reciprocals_are_exact \
    --skip other_bytes_are_not_packed --skip the_largest_sums_are_exact
  small small::floats
}

codecs() {
  nightly miri rust-src
  small small:: --skip floats --skip angles_and_chunks # the latter has hqmq, whose sets take minutes
}

# Miri does not know the instructions that libm computes square roots with, so libm runs in software.
small() {
  export CARGO_TARGET_DIR=$PWD/target/memory/miri MIRIFLAGS=-Zmiri-disable-isolation
  unset OCTAPLEX_REQUIRE # Miri can interpret the specification only
  cargo +nightly miri test --quiet --locked -p octaplex --features libm/force-soft-floats --test suite -- "$@"
}

address() {
  nightly
  export CARGO_TARGET_DIR=$PWD/target/memory/address
  # With --target, Cargo builds build scripts without the sanitizer. Examples in the documentation would add nothing here. Tests
  # with guard pages find such accesses without the sanitizer.
  RUSTFLAGS=-Zsanitizer=address \
    cargo +nightly test --quiet --locked --target "$host" -p octaplex-arch --test parts --test equivalence --test contract --test layout
}

thread() {
  nightly rust-src
  export CARGO_TARGET_DIR=$PWD/target/memory/thread
  RUSTFLAGS=-Zsanitizer=thread RAYON_NUM_THREADS=4 \
    cargo +nightly test --quiet --locked -Zbuild-std --target "$host" -p octaplex --features rayon --test suite --test rayon -- thread trace chunk
}

valgrind_c() {
  command -v valgrind >/dev/null || ci/install.sh valgrind
  local built=${CARGO_TARGET_DIR:-target}
  cargo build --quiet --locked -p octaplex-c
  gcc -std=c11 -g -O1 -Ibindings/c bindings/c/examples/attention.c "$built/debug/liboctaplex_c.a" -lpthread -ldl -lm \
    -o "$built/memory-example"
  # Builds with debug assertions keep a word of every freed handle, to recognise it. `fuzz_replay` looks for leaks.
  valgrind --quiet --error-exitcode=1 --leak-check=no "$built/memory-example"
}

checks=("$@")
((${#checks[@]})) || checks=(miri)
for check in "${checks[@]}"; do
  case $check in
    miri | codecs | address | thread) printf '\n== %s\n' "$check" && (time -p "$check") ;;
    valgrind) printf '\n== %s\n' "$check" && (time -p valgrind_c) ;;
    *)
      echo "usage: ci/memory.sh [miri] [codecs] [address] [thread] [valgrind]" >&2
      exit 2
      ;;
  esac
done
