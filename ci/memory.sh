#!/usr/bin/env bash
# Looks for undefined behaviour, on the nightly compiler:
#   miri      the specification, a cache and its snapshots, interpreted; Miri knows no vector instructions
#   address   every kernel of every backend of this CPU, compiled with AddressSanitizer
# and, not among all, as they take minutes:
#   codecs    Miri on caches of the other codecs
#   thread    attention and chunks on several threads, with ThreadSanitizer and a standard library that is built with it
#   valgrind  the C example, every byte that it reads
# `ci/memory.sh` does the first two, `ci/memory.sh miri` one.
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
  unset OCTAPLEX_REQUIRE # none but the specification can be interpreted
  # Interpreting is a thousand times slower: tests/small.rs is made for it; hqmq's sets alone take minutes. Three of the
  # kernels' tests are arithmetic by the hundred thousand.
  cargo +nightly miri test --quiet --locked -p octaplex-arch --lib -- \
    --skip exp_is_within_its_error --skip caps_are_within_their_error --skip units_by_reciprocals_are_exact
  small small::codes_and_paths
}

codecs() {
  nightly miri rust-src
  small small:: --skip codes_and_paths --skip angles_and_chunks # hqmq trains its sets
}

# Nor does Miri know the instructions that libm takes square roots with.
small() {
  export CARGO_TARGET_DIR=$PWD/target/memory/miri MIRIFLAGS=-Zmiri-disable-isolation
  unset OCTAPLEX_REQUIRE # none but the specification can be interpreted
  cargo +nightly miri test --quiet --locked -p octaplex --features libm/force-soft-floats --test suite -- "$@"
}

address() {
  nightly
  export CARGO_TARGET_DIR=$PWD/target/memory/address
  # A target of its own name keeps build scripts out of it. Documentation's examples add nothing here, nor do guard pages, which
  # are there without it.
  RUSTFLAGS=-Zsanitizer=address \
    cargo +nightly test --quiet --locked --target "$host" -p octaplex-arch --lib --test equivalence --test contract --test layout
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
  # Builds with debug assertions keep a word of every freed handle, by intent: leaks are looked for elsewhere (fuzz_replay).
  valgrind --quiet --error-exitcode=1 --leak-check=no "$built/memory-example"
}

checks=("$@")
((${#checks[@]})) || checks=(miri address)
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
