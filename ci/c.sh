#!/usr/bin/env bash
# Tests the C interface:
#   * octaplex.h is what cbindgen writes;
#   * gcc and clang compile the test without a warning, and it passes, also under the sanitizers of addresses and
#     undefined behaviour;
#   * the commands of its README install the library, and pkg-config and CMake find it;
#   * wrong calls of the fuzzing corpus do no harm, the example on ggml runs, and the cost of a call is measured.
#
# usage: ci/c.sh
#        ci/c.sh --bless    rewrites octaplex.h
#        ci/c.sh cargo-c    installs with cargo-c instead, by the README's commands for it. It builds cargo-c in target/tools,
#                           which takes minutes, so it is not part of .ci/run.
#
# `ci/cross.sh arm64` runs the same test for ARM.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD folder=$PWD/target/c
export PATH=$PWD/target/tools/bin:$PATH
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

. ci/needed.sh
for tool in gcc g++ clang cmake pkg-config; do need "$tool" "$tool"; done
install_needed
# clang's sanitizers are a package of their own.
[[ -e $(clang -print-resource-dir)/lib/linux/libclang_rt.asan-$(uname -m).a ]] || ci/install.sh "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
# Everybody needs this version: others write another header.
command -v cbindgen >/dev/null || ci/install.sh cbindgen-web || CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$here/target/tools/build \
  cargo install --quiet --debug --locked --root target/tools cbindgen --version 0.29.0

say "the header"
mkdir -p "$folder"
# Rust's documentation requires this heading; readers of C do not know it.
cbindgen --quiet --config bindings/c/cbindgen.toml bindings/c | sed "s/# Safety$/Requires:/" >"$folder/octaplex.h"
[[ ${1:-} != --bless ]] || cp "$folder/octaplex.h" bindings/c/octaplex.h
diff bindings/c/octaplex.h "$folder/octaplex.h" || { echo "octaplex.h is not what the code says: ci/c.sh --bless" >&2; exit 1; }

say "the README's lines"
rm -rf "$folder/prefix" "$folder/cmake" target/octaplex-c
export PREFIX=$folder/prefix CARGO_TARGET_DIR=$here/target
if [[ ${1:-} == cargo-c ]]; then
  export CARGO_INSTALL_ROOT=$here/target/tools
  # In a folder of its own: cargo-c has another Cargo in it, after whose builds of scripts the other builds everything anew.
  ci/printed.sh bindings/c/README.md bash - >"$folder/lines"
  CARGO_TARGET_DIR=$folder/build bash -euxo pipefail "$folder/lines"
  # shellcheck disable=SC2046 # several options
  cc bindings/c/examples/attention.c $(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --cflags --libs octaplex) -o "$PREFIX/attention"
else
  ci/printed.sh bindings/c/README.md
fi
LD_LIBRARY_PATH=$PREFIX/lib "$PREFIX/attention" >"$folder/by-pkg-config"
[[ ${1:-} == cargo-c ]] || target/attention | diff "$folder/by-pkg-config" -
# The library has its loader's name, and pkg-config knows its version.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
readelf -d "$PREFIX/lib/liboctaplex.so" | grep -F "soname: [liboctaplex.so.${version%.*}]"
[[ $(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --modversion octaplex) == "$version" ]]
mkdir -p "$folder/cmake"
ci/printed.sh bindings/c/README.md cmake - >"$folder/cmake/CMakeLists.txt"
cp bindings/c/examples/attention.c "$folder/cmake"
cmake -S "$folder/cmake" -B "$folder/cmake/build" -DCMAKE_PREFIX_PATH="$PREFIX" >/dev/null
cmake --build "$folder/cmake/build" >/dev/null
"$folder/cmake/build/attention" | diff "$folder/by-pkg-config" -
sed -i 's/octaplex::octaplex/octaplex::static/' "$folder/cmake/CMakeLists.txt"
cmake --build "$folder/cmake/build" >/dev/null
"$folder/cmake/build/attention" | diff "$folder/by-pkg-config" -
# An empty prefix, as of a variable that is not set, would install into /.
if cmake -S bindings/c -B "$folder/cmake/empty" -DCMAKE_INSTALL_PREFIX= 2>"$folder/cmake/said" >/dev/null; then
  echo "CMake takes an empty prefix" >&2
  exit 1
fi
grep -qF "CMAKE_INSTALL_PREFIX is empty" "$folder/cmake/said"
# The requests that CMake's version file answers, and those that it refuses.
finds() { # finds REQUEST
  printf 'cmake_minimum_required(VERSION 3.16)\nproject(asks C)\nfind_package(octaplex %s REQUIRED CONFIG)\n' "$1" >"$folder/asks/CMakeLists.txt"
  cmake -S "$folder/asks" -B "$folder/asks/build" -DCMAKE_PREFIX_PATH="$PREFIX" >"$folder/asks/log" 2>&1
}
mkdir -p "$folder/asks"
for request in "" "${version%%.*}" "${version%.*}" "$version" "$version EXACT"; do
  finds "$request" || { cat "$folder/asks/log" >&2; echo "find_package(octaplex $request) should find $version" >&2; exit 1; }
done
for request in 0.0 0.2 "${version%.*}.99" 1 1.0 "0.1.0.1 EXACT"; do
  ! finds "$request" || { echo "find_package(octaplex $request) should refuse $version" >&2; exit 1; }
  grep -q "version: $version" "$folder/asks/log" || { cat "$folder/asks/log" >&2; exit 1; }
done
say "the test, with debug assertions and without"
cargo build --quiet --locked -p octaplex-c -p octaplex-arch --lib --test fuzz_replay # the library as tests have it
release=$PREFIX/lib/liboctaplex.a
declare -A libraries=([debug]=target/debug/liboctaplex_c.a [release]=$release)
strict=(-std=c11 -Wall -Wextra -Werror -Wconversion -Wshadow -g -O1 -Ibindings/c)
link=(-lpthread -ldl -lm)
for compiler in gcc clang; do
  for profile in debug release; do
    program=$folder/$compiler-$profile
    "$compiler" "${strict[@]}" bindings/c/tests/interface.c "${libraries[$profile]}" "${link[@]}" -o "$program"
    "$program"
  done
  "$folder/$compiler-debug" freed
  "$compiler" "${strict[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all bindings/c/tests/interface.c \
    "$release" "${link[@]}" -o "$folder/$compiler-sanitized"
  "$folder/$compiler-sanitized"
done
# The header compiles as C++ too.
echo '#include "octaplex.h"
int main() { return octaplex_backend_name(0) == nullptr; }' >"$folder/header.cpp"
g++ -std=c++17 -Wall -Wextra -Werror -Ibindings/c "$folder/header.cpp" "$release" "${link[@]}" -o "$folder/cpp"
"$folder/cpp"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -Ibindings/c bindings/c/examples/engine.cpp "$release" "${link[@]}" -o "$folder/engine"
"$folder/engine"
# The programs that the README and the page on engines print.
for page in bindings/c/README.md docs/engine.md; do
  ci/printed.sh "$page" c - >"$folder/printed.c"
  gcc "${strict[@]}" "$folder/printed.c" "$release" "${link[@]}" -o "$folder/printed"
  "$folder/printed"
done

say "wrong calls: the fuzz target's corpus, and nothing is left behind"
CARGO_PROFILE_RELEASE_DEBUG=0 cargo test --quiet --release --locked -p octaplex-c --test fuzz_replay

say "a model on ggml"
ci/ggml.sh

say "what a call costs"
CARGO_PROFILE_BENCH_DEBUG=0 cargo bench --quiet --locked -p octaplex-c --bench overhead
say "passed"
