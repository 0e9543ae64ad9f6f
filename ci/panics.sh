#!/usr/bin/env bash
# Which calls that read compressed bytes can panic: decode, score and sums of `TurboQuant<64>` and attention on a cache of it, and no other
# codec, width or call. Each of ci/panics/ is linked alone for a Cortex-M4, with link-time optimisation, and the functions of
# `core::panicking` that are left in it are held against ci/panics.txt. Not part of .ci/run.
# `ci/panics.sh bless` rewrites the table.
set -euo pipefail
cd "$(dirname "$0")/.."
target=thumbv7em-none-eabihf
export CARGO_TARGET_DIR=$PWD/target/cross/panics
export CARGO_TARGET_THUMBV7EM_NONE_EABIHF_RUSTFLAGS="-C link-arg=-estart -C link-arg=--gc-sections -C linker=ld.lld -C linker-flavor=ld.lld"
cargo=(cargo) options=(--target "$target")
if [[ ! -d $(rustc --print target-libdir --target "$target") ]]; then
  # Debian's compiler, as ci/cross.sh installs it.
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
  options+=(-Z build-std=core,alloc)
fi
"${cargo[@]}" build --quiet --release --locked "${options[@]}" --manifest-path ci/panics/Cargo.toml
for call in decode score sums attend; do
  # Symbols of the calls that panic: `slice_index_fail`, `panic_bounds_check`, `assert_failed`, `panic_fmt` …
  llvm-nm --demangle "$CARGO_TARGET_DIR/$target/release/$call" | cut -d' ' -f3- \
    | { grep -E '^core::(panicking::|.*(_fail|_failed|unwrap|expect))' || true; } | sed "s/::<.*//; s/^/$call /" | sort -u
done >"$CARGO_TARGET_DIR/panics.txt"
cat "$CARGO_TARGET_DIR/panics.txt"
[[ ${1:-} != bless ]] || { (grep '^#' ci/panics.txt || true; cat "$CARGO_TARGET_DIR/panics.txt") >ci/panics.new; mv ci/panics.new ci/panics.txt; }
diff <(grep -v '^#' ci/panics.txt || true) "$CARGO_TARGET_DIR/panics.txt"
