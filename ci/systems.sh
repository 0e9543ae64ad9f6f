#!/usr/bin/env bash
# Tests what differs between operating systems: files, threads, loaded libraries.
#
# usage: ci/systems.sh           on this machine: Linux, macOS or Windows
#        ci/systems.sh windows   on Linux, for Windows: compiled with MinGW, run in Wine
#        ci/systems.sh macos     on Linux, for macOS: clippy. Nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }
. ci/release/machines.sh
parts=(-p octaplex-files -p octaplex-ggml -p octaplex-cli -p octaplex-c)
target() { # target TRIPLE: its standard library
  [[ -d $(rustc --print target-libdir --target "$1") ]] || rustup target add "$1"
}
export CARGO_PROFILE_DEV_DEBUG=0
case ${1:-here} in
  here)
    say "clippy, for code of this system"
    cargo clippy --quiet --locked "${parts[@]}" -- -D warnings
    say "tests"
    cargo test --quiet --locked --workspace --exclude octaplex-candle
    ;;
  windows)
    say "Windows: clippy"
    target x86_64-pc-windows-gnu
    target x86_64-pc-windows-msvc
    cargo clippy --quiet --locked --target x86_64-pc-windows-msvc "${parts[@]}" -- -D warnings
    need gcc-mingw-w64-x86-64 x86_64-w64-mingw32-gcc
    need wine64 "$wine"
    install_needed
    say "Windows: tests in Wine"
    place=$root/target/wine
    mkdir -p "$place"
    windows cmd /c ver # makes the prefix
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$wine
    cargo test --quiet --locked --target x86_64-pc-windows-gnu "${parts[@]}"
    # Wine gives memory that the machine does not have, where Windows would refuse it. The limit makes that an error.
    (ulimit -v 60000000 && cargo test --quiet --locked --target x86_64-pc-windows-gnu -p octaplex --test suite -- --test-threads 1)
    ;;
  macos)
    say "macOS: clippy"
    target aarch64-apple-darwin
    cargo clippy --quiet --locked --target aarch64-apple-darwin "${parts[@]}" -- -D warnings
    ;;
  *) sed -n '4,6s/^# //p' "$0" >&2; exit 2 ;;
esac
say "passed"
