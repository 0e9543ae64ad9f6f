#!/usr/bin/env bash
# Tests the artefacts in target/dist as a user gets them: in a folder without the sources, with packages of the registries.
#
# usage: ci/release/test.sh           all; 15 to 25 minutes on two cores
#        ci/release/test.sh NAME...   some: crates python npm c llama tool
#        ci/release/test.sh NAME PLATFORM...   on some: x86_64-linux aarch64-linux x86_64-windows
#
# Programs for 64-bit ARM run in qemu, and those for Windows in Wine, so both pass here without such a machine. Nothing runs
# programs for macOS. It installs missing Debian packages (ci/install.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD dist=$PWD/target/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
place=$(mktemp -d) # outside the clone
trap '[[ ! -d $place/wine ]] || WINEPREFIX=$place/wine /usr/lib/wine/wineserver -k || true; rm -rf "$place"' EXIT
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }
fail() { echo "ci/release/test.sh: $*" >&2; exit 1; }
# shellcheck disable=SC2053 # a pattern
must() { [[ $1 == $2 ]] || fail "expected \"$2\", got \"$1\""; } # must TEXT PATTERN
. ci/release/machines.sh

unpack() { # unpack KIND-FILE FOLDER: unpacks an archive of dist for a platform, without its first folder
  mkdir -p "$2.all"
  case $1 in
    *-windows) python3 -m zipfile -e "$dist/$1.zip" "$2.all" ;;
    *) tar -xzf "$dist/$1.tar.gz" -C "$2.all" ;;
  esac
  mv "$2.all"/* "$2"
  for licence in MIT APACHE; do [[ -s $2/LICENSE-$licence ]] || fail "$1 has no LICENSE-$licence"; done
}

checksums() {
  say "checksums"
  (cd "$dist" && sha256sum --check --quiet SHA256SUMS)
}

crates() { # a program on the packaged crates; the tool from them
  say "crates: a program that depends on the packaged files"
  local name
  mkdir -p "$place/user/src" "$place/crates"
  for name in "$dist"/crates/*.crate; do tar -xzf "$name" -C "$place/crates"; done
  printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]\noctaplex = "%s"\n[profile.dev]\nopt-level = 1\n[patch.crates-io]\n' \
    "$version" >"$place/user/Cargo.toml"
  for name in octaplex octaplex-arch octaplex-device octaplex-files octaplex-metrics octaplex-candle; do
    echo "$name = { path = \"../crates/$name-$version\" }" >>"$place/user/Cargo.toml"
  done
  ci/printed.sh README.md rust - >"$place/user/src/main.rs"
  (cd "$place/user" && CARGO_TARGET_DIR=$place/target cargo run --quiet)
  say "crates: the tool and the C library compile"
  for name in octaplex-cli octaplex-c; do
    sed -n '/^\[patch/,$p' "$place/user/Cargo.toml" | sed 's#\.\./crates/#../#' >>"$place/crates/$name-$version/Cargo.toml"
    (cd "$place/crates/$name-$version" && CARGO_TARGET_DIR=$place/target cargo check --quiet)
  done
  rm -rf "$place/target"
}

# The output of a first program, the same on every CPU.
first_program='import numpy, octaplex
rows = numpy.random.default_rng(1).standard_normal((8, 1000, 128)).astype(numpy.float32)
cache = octaplex.Cache(layers=2, kv_heads=8, head_dim=128, capacity=4096, bits=3.2)
cache.append(0, keys=rows, values=rows)
import hashlib
print(octaplex.__version__, hashlib.sha256(cache.save()).hexdigest(), octaplex.verify())'

wheels() { # wheels PLATFORM...
  local platform expected found site
  say "python, x86_64-linux: the wheel in a new environment, without Rust on the path"
  python3 -m venv "$place/venv"
  PATH=$place/venv/bin pip install --quiet --disable-pip-version-check --only-binary :all: --find-links "$dist/python" "octaplex==$version"
  if PATH=$place/venv/bin command -v cargo rustc >/dev/null; then fail "the environment has a compiler"; fi
  cd "$place"
  expected=$(PATH=$place/venv/bin python -c "$first_program")
  echo "$expected"
  must "$expected" "$version *"
  say "python: its tests, from a folder of their own"
  "$place/venv/bin/pip" install --quiet --disable-pip-version-check --constraint "$root/ci/requirements.txt" pytest ml_dtypes
  # The tests read samples of the repository by this layout.
  mkdir -p "$place/tests/bindings/python" "$place/tests/src/verify" "$place/tests/tests"
  cp -r "$root/bindings/python/tests" "$root/bindings/python/README.md" "$place/tests/bindings/python"
  cp -r "$root/profiles" "$place/tests"
  cp "$root/src/verify/expected.txt" "$place/tests/src/verify"
  cp -r "$root"/tests/{golden,snapshots} "$place/tests/tests"
  (cd "$place/tests/bindings/python/tests" && PATH=$place/venv/bin:/usr/bin python -m pytest -q -p no:cacheprovider test_octaplex.py)
  say "python: on an emulated CPU without AVX"
  need qemu-user-static qemu-x86_64-static
  install_needed
  found=$(PATH=$place/venv/bin /usr/bin/qemu-x86_64-static -cpu Nehalem "$(realpath "$place/venv/bin/python")" -c \
    "import sys; sys.path.insert(0, '$(echo "$place"/venv/lib/python3*/site-packages)'); import octaplex; print(octaplex.backend()); print(octaplex.verify())" 2>"$place/log") \
    || { cat "$place/log" >&2; fail "the wheel does not run on an old CPU"; }
  echo "$found"
  must "$found" "portable*${expected##* }"
  say "python: pip refuses a wheel of another platform"
  if "$place/venv/bin/pip" install --disable-pip-version-check --no-deps "$dist"/python/*aarch64.whl >"$place/log" 2>&1; then
    fail "pip installs it"
  fi
  grep "not a supported wheel on this platform" "$place/log"
  for platform in "$@"; do
    site=$place/site-$platform
    case $platform in
      aarch64-linux) arm64_python ;;
      x86_64-windows) windows_python ;;
      *) continue ;;
    esac
    say "python, $platform: the wheel that pip chooses, in $(emulator "$platform")"
    "$place/venv/bin/pip" install --quiet --disable-pip-version-check --target "$site" --platform "$(tag "$platform")" --python-version "$(python_of "$platform")" \
      --only-binary :all: --find-links "$dist/python" "octaplex==$version"
    echo "$first_program" >"$place/first.py"
    case $platform in
      x86_64-windows) # Wine 8 lacks a function that numpy calls. So nothing with arrays runs: all checksums, and the names of codecs.
        printf '%s\n' 'import sys' 'from unittest.mock import MagicMock' 'sys.modules["numpy"] = sys.modules["numpy.typing"] = MagicMock()' 'import octaplex' 'assert len(octaplex.codecs()) > 10' \
          'print(octaplex.__version__, octaplex.verify())' >"$place/first.py"
        must "$(run_python "$platform" "$site" "$place/first.py")" "$version ${expected##* }"
        echo "the same checksums, without numpy"
        ;;
      *)
        must "$(run_python "$platform" "$site" "$place/first.py")" "$expected"
        echo "the same bytes and checksums"
        ;;
    esac
  done
  say "python: the source distribution builds"
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_TARGET_DIR=$place/target \
    "$place/venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$dist/python/octaplex-$version.tar.gz"
  must "$("$place/venv/bin/python" -c "$first_program")" "$expected"
  cd "$root"
}

npm_package() {
  say "npm: the package in an empty folder"
  mkdir -p "$place/npm"
  cp "$root/bindings/wasm/test/package.test.mjs" "$root/bindings/wasm/test/checks.mjs" "$root/bindings/wasm/test/load.test.mjs" \
    "$root"/tests/snapshots/*.snapshot "$root/profiles/smollm2-135m.octaprofile" "$place/npm"
  cd "$place/npm"
  echo '{ "private": true, "type": "module" }' >package.json
  npm install --silent --no-audit --no-fund "$dist/npm/octaplex-$version.tgz"
  "$root/ci/printed.sh" node_modules/octaplex/README.md js - >readme.mjs
  node readme.mjs
  node --test load.test.mjs package.test.mjs
  cd "$root"
}

c_library() { # c_library PLATFORM...
  local platform at compiler printed expected=
  need cmake cmake
  need pkg-config pkg-config
  install_needed
  for platform in "$@"; do
    say "c, $platform: a program by pkg-config and by CMake, in $(emulator "$platform")"
    compiler_of "$platform"
    at=$place/c-$platform
    unpack "c/octaplex-c-$version-$platform" "$at"
    cd "$at"
    # shellcheck disable=SC2046 # several options
    "$compiler" examples/attention.c $(PKG_CONFIG_PATH=$at/lib/pkgconfig pkg-config --cflags --libs octaplex) -o by-pkg-config.exe
    must "$(PKG_CONFIG_PATH=$at/lib/pkgconfig pkg-config --modversion octaplex)" "$version"
    mkdir cmake
    "$root/ci/printed.sh" README.md cmake - >cmake/CMakeLists.txt
    cp examples/attention.c cmake
    sed 's/octaplex::octaplex/octaplex::static/; s/(attention a/(linked a/; s/libraries(attention/libraries(linked/' cmake/CMakeLists.txt | tail -n 2 >cmake/linked
    cat cmake/linked >>cmake/CMakeLists.txt
    # shellcheck disable=SC2046 # several options
    cmake -S cmake -B cmake/build -DCMAKE_PREFIX_PATH="$at" -DCMAKE_FIND_ROOT_PATH="$at" -DCMAKE_C_COMPILER="$compiler" $(cmake_of "$platform") >log \
      || { cat log >&2; fail "CMake does not find the library"; }
    cmake --build cmake/build >>log || { cat log >&2; exit 1; }
    [[ $platform != *-windows ]] || cp bin/octaplex.dll . # next to the programs
    for program in ./by-pkg-config.exe cmake/build/attention cmake/build/linked; do
      [[ -e $program ]] || program+=.exe
      [[ $platform != *-windows ]] || cp -n bin/octaplex.dll "$(dirname "$program")"
      printed=$(LD_LIBRARY_PATH=$at/lib run "$platform" "$program")
      [[ -n $expected ]] || { expected=$printed; echo "$printed"; }
      must "$printed" "$expected"
    done
    cd "$root"
  done
}

tool() { # tool PLATFORM...
  local platform at program found expected=
  for platform in "$@"; do
    say "tool, $platform, in $(emulator "$platform")"
    at=$place/tool-$platform
    unpack "tool/octaplex-$version-$platform" "$at"
    cd "$at"
    program=$at/octaplex
    case $platform in
      *-windows) program+=.exe ;;
      *) must "$(file -b "$program")" "*static*" ;;
    esac
    must "$(run "$platform" "$program" --version)" "octaplex $version*"
    run "$platform" "$program" verify | tail -n 2
    # Files, one with a name that is not ASCII. Every platform writes the same bytes.
    python3 -c 'import array, math, sys; array.array("f", (math.sin(i * i) for i in range(12800))).tofile(sys.stdout.buffer)' >rows.f32
    run "$platform" "$program" encode trellis --dim 128 rows.f32 "ü.bin"
    run "$platform" "$program" decode trellis --dim 128 "ü.bin" back.f32
    found=$(cat "ü.bin" back.f32 | sha256sum)
    [[ -n $expected ]] || expected=$found
    must "$found" "$expected"
    must "$(wc -c <back.f32)" 51200
    [[ $platform != x86_64-linux ]] || { say "tool: on an emulated CPU without AVX"; qemu-x86_64-static -cpu Nehalem "$program" verify | tail -n 1; }
    cd "$root"
  done
}

# Probabilities of a prebuilt llama.cpp with octaplex, against those with its own cache.
llama() { # llama PLATFORM...
  local platform at library
  python3 -m venv "$place/gguf"
  "$place/gguf/bin/pip" install --quiet --disable-pip-version-check numpy gguf
  "$place/gguf/bin/python" ci/llama/made.py llama "$place/llama.gguf" >/dev/null
  for platform in "$@"; do
    say "llama.cpp, $platform: node-llama-cpp's, in $(emulator "$platform")"
    at=$place/llama-$platform
    unpack "llama/octaplex-llama-$version-$platform" "$at"
    library=$(echo "$at"/*octaplex_ggml.*)
    cp ci/llama/node.mjs ci/llama/near.py "$place/llama.gguf" "$at"
    cd "$at"
    node_for "$platform"
    probabilities() { # probabilities OUT NAME=VALUE...
      (export "${@:2}"; run_node "$platform" node.mjs llama.gguf - "$1" 320 64 >out 2>log </dev/null) || { cat log >&2; fail "llama.cpp ended with an error"; }
    }
    probabilities base.json A=
    probabilities exact.json "GGML_BACKEND_PATH=$(path_for "$platform" "$library")" OCTAPLEX_KEYS=f16 OCTAPLEX_VALUES=f16
    grep "OCTAPLEX KV buffer" log
    "$place/gguf/bin/python" near.py base.json exact.json 1e-4
    probabilities bits.json "GGML_BACKEND_PATH=$(path_for "$platform" "$library")"
    grep "OCTAPLEX KV buffer" log
    "$place/gguf/bin/python" near.py base.json bits.json 0.05
    # A library for another machine: llama.cpp says so, and uses its own cache.
    mkdir -p other
    echo "no library" >"other/${library##*/}"
    probabilities other.json "GGML_BACKEND_PATH=$(path_for "$platform" "$at/other/${library##*/}")"
    grep "failed to load" log
    cmp base.json other.json
    cd "$root"
  done
}

platforms=() names=()
for word in "$@"; do
  case $word in
    x86_64-linux | aarch64-linux | x86_64-windows) platforms+=("$word") ;;
    crates | python | npm | c | llama | tool) names+=("$word") ;;
    *) sed -n '4,6s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
((${#platforms[@]})) || platforms=(x86_64-linux aarch64-linux x86_64-windows)
((${#names[@]})) || names=(crates python npm c llama tool)
checksums
for name in "${names[@]}"; do
  case $name in
    npm) npm_package ;;
    python) wheels "${platforms[@]}" ;;
    c) c_library "${platforms[@]}" ;;
    *) "$name" "${platforms[@]}" ;;
  esac
done
say "passed: ${names[*]} on ${platforms[*]}"
