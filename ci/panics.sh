#!/usr/bin/env bash
# Lists the panics that are linked into calls that read compressed bytes, and compares the list with ci/panics.txt.
#
# usage: ci/panics.sh
#        ci/panics.sh --bless    rewrites the list
#
# Each program of ci/panics/ makes one call: decode, score or sums of `TurboQuant<64>`, or attention on a cache of it. It is
# linked for a Cortex-M4, with the options of ci/sizes.sh. Other codecs, widths and calls are not checked.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# == 0 || $* == --bless ]] || { sed -n '4,5s/^# //p' "$0" >&2; exit 2; }
target=thumbv7em-none-eabihf
export CARGO_TARGET_DIR=$PWD/target/cross/sizes CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER=ld.lld
# Debian's compiler, as ci/cross.sh installs it, or rustup's, as in ci/sizes.sh. The panics of `attend` depend on the compiler, so only
# Debian's checks that call.
cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo) options=(-Z build-std=core) calls=(decode score sums attend)
[[ -d /usr/lib/rustlib/src/rust/library ]] || { cargo=(cargo) options=() calls=(decode score sums); }
"${cargo[@]}" build --quiet --release --locked --target "$target" "${options[@]}" --manifest-path ci/panics/Cargo.toml
new=$CARGO_TARGET_DIR/panics.txt
for call in "${calls[@]}"; do
  # Symbols of the calls that panic: `slice_index_fail`, `panic_bounds_check`, `assert_failed`, `panic_fmt` …
  symbols=$(nm --demangle "$CARGO_TARGET_DIR/$target/release/$call" | cut -d' ' -f3-)
  grep -qx _start <<<"$symbols" || { echo "$call has no entry: nothing is known of it" >&2; exit 1; }
  { grep -E '^core::(panicking::|.*(_fail|_failed|unwrap|expect))' <<<"$symbols" || true; } | sed "s/::<.*//; s/^/$call /" | sort -u
done >"$new"
cat "$new"
[[ ${1:-} != --bless ]] || { (grep '^#' ci/panics.txt || true; cat "$new"; [[ " ${calls[*]} " == *" attend "* ]] || grep '^attend ' ci/panics.txt) >ci/panics.new; mv ci/panics.new ci/panics.txt; }
diff <(for call in "${calls[@]}"; do grep "^$call " ci/panics.txt || true; done) "$new"
