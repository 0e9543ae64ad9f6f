#!/usr/bin/env bash
# Makes the artefacts of a version in target/dist, with checksums: crates, wheels, the npm package, the C library, the llama.cpp
# library and the tool. docs/releasing.md has the table of artefacts and platforms.
#
# usage: ci/release.sh                  makes all, and compares sizes with ci/release/budget.txt
#        ci/release.sh make TARGET...   makes a part: sources x86_64-linux aarch64-linux x86_64-windows aarch64-macos
#        ci/release.sh sizes            compares sizes
#        ci/release.sh test [NAME...]   tests the artefacts as a user gets them (ci/release/test.sh)
#
# It runs on Linux and needs rustup, Node and Python. It installs a Rust toolchain of its own, zig and maturin. The toolchain is fixed,
# and no path or time of the machine gets into a file. It is not part of .ci/run, because it compiles the kernels some ten times.
set -euo pipefail
cd "$(dirname "$0")/.."
all=(sources x86_64-linux aarch64-linux x86_64-windows aarch64-macos)
root=$PWD dist=$PWD/target/dist tools=$PWD/target/release-tools
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# In the order in which crates.io must get them: each after those that it needs.
crates=(octaplex-arch octaplex-device octaplex octaplex-metrics octaplex-files octaplex-candle octaplex-cli octaplex-c)
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

same_version() { # fails if a manifest has another version
  local file
  for file in bindings/{python,wasm}/Cargo.toml bindings/python/pyproject.toml bindings/wasm/package.json bindings/c/octaplex-config-version.cmake; do
    grep -qE "version\"?( = |: )\"$version\"|PACKAGE_VERSION $version\)" "$file" || { echo "$file has another version than Cargo.toml, $version" >&2; exit 1; }
  done
}

prepare() { # installs compilers, and sets what all builds share
  export RUSTUP_TOOLCHAIN=1.96.0
  local targets=wasm32-unknown-unknown,x86_64-pc-windows-gnu,aarch64-apple-darwin triple
  for triple in {x86_64,aarch64}-unknown-linux-{gnu,musl}; do targets+=,$triple; done
  rustup toolchain install "$RUSTUP_TOOLCHAIN" --profile minimal --no-self-update --target "$targets" 2>"$tools.log" \
    || { cat "$tools.log" >&2; exit 1; }
  python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv
  command -v cmake >/dev/null || ci/install.sh cmake
  [[ -x $tools/bin/python ]] || python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --constraint ci/requirements.txt ziglang cargo-zigbuild maturin
  export PATH=$tools/bin:$PATH CARGO_TARGET_DIR=$root/target/release-build CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_INCREMENTAL=0
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  CARGO_ENCODED_RUSTFLAGS=$(printf -- '--remap-path-prefix=%s=octaplex\x1f--remap-path-prefix=%s=cargo' "$root" "${CARGO_HOME:-$HOME/.cargo}/registry/src")
  export SOURCE_DATE_EPOCH CARGO_ENCODED_RUSTFLAGS TZ=UTC
}

sources() { # crates, the source distribution for Python, the npm package
  say "crates, in the order of publishing: ${crates[*]}"
  mkdir -p "$dist"/{crates,python,npm}
  local packages=() name
  for name in "${crates[@]}"; do packages+=(-p "$name"); done
  # ci/package.sh builds what it packs; ci/release.sh test builds from these files.
  cargo package --quiet --locked --no-verify "${packages[@]}"
  for name in "${crates[@]}"; do cp "$CARGO_TARGET_DIR/package/$name-$version.crate" "$dist/crates"; done
  say "a source distribution"
  maturin sdist --manifest-path bindings/python/Cargo.toml --out "$dist/python"
  say "the npm package"
  # The script has flags of its own, which these would replace.
  OCTAPLEX_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS//$'\x1f'/ } CARGO_TARGET_DIR=$CARGO_TARGET_DIR/npm env -u CARGO_ENCODED_RUSTFLAGS bindings/wasm/build.sh
  npm pack --silent ./bindings/wasm --pack-destination "$dist/npm"
}

build() { # build COMMAND TRIPLE ARGUMENT...: runs cargo or, for Linux and macOS, cargo-zigbuild
  local command=$1 triple=$2
  shift 2
  case $triple:$command in
    *-windows-*) cargo "$command" --quiet --release --locked --target "$triple" "$@" ;;
    *:build) cargo-zigbuild zigbuild --quiet --release --locked --target "$triple" "$@" ;;
    *) cargo-zigbuild "$command" --quiet --release --locked --target "$triple" "$@" ;;
  esac
}

platform() { # platform NAME TRIPLE TOOL-TRIPLE SYSTEM: all artefacts for one platform
  local name=$1 triple=$2 tool=$3 system=$4 built=$CARGO_TARGET_DIR/$2/release stage=$CARGO_TARGET_DIR/stage/$1
  local zig=(--zig --compatibility manylinux2014) link prefix=lib suffix=so versioned=$triple
  case $system in
    Linux) link=-Wl,-soname,liboctaplex.so.${version%.*} versioned=$triple.2.17 ;; # the glibc of manylinux2014
    Darwin) link=-Wl,-install_name,@rpath/liboctaplex.${version%.*}.dylib suffix=dylib zig=(--zig) ;;
    Windows)
      link=-Wl,--dynamicbase suffix=dll prefix='' zig=()
      command -v x86_64-w64-mingw32-gcc >/dev/null || ci/install.sh gcc-mingw-w64-x86-64
      ;;
  esac
  rm -rf "$stage"
  mkdir -p "$dist"/{python,c,llama,tool} "$stage"/{built,c,llama,tool}

  say "$name: the C library and the llama.cpp library"
  build build "$versioned" -p octaplex-ggml -p octaplex-c --lib
  build rustc "$versioned" -p octaplex-c --lib -- -C "link-arg=$link"
  c_files "$system"
  cmake -S bindings/c -B "$stage/cmake" -DOCTAPLEX_BUILT="$stage/built" -DCMAKE_SYSTEM_NAME="$system" -DCMAKE_INSTALL_PREFIX="$stage/c" \
    -DCMAKE_INSTALL_LIBDIR=lib >"$stage/log" || { cat "$stage/log" >&2; exit 1; }
  cmake --install "$stage/cmake" >>"$stage/log"
  cp -r bindings/c/README.md bindings/c/LICENSE-* "$stage/c"
  mkdir "$stage/c/examples"
  cp bindings/c/examples/attention.c "$stage/c/examples"
  pack "$stage/c" "$dist/c/octaplex-c-$version-$name"
  cp "$built/${prefix}octaplex_ggml.$suffix" bindings/ggml/README.md bindings/ggml/LICENSE-* "$stage/llama"
  pack "$stage/llama" "$dist/llama/octaplex-llama-$version-$name"

  say "$name: a wheel"
  maturin build --quiet --release --target "$triple" "${zig[@]}" --manifest-path bindings/python/Cargo.toml --out "$dist/python"

  [[ $tool == - ]] || {
    say "$name: the tool"
    build build "$tool" -p octaplex-cli
    cp "$CARGO_TARGET_DIR/$tool/release/octaplex"{,.exe} "$stage/tool" 2>/dev/null || [[ -n $(ls "$stage/tool") ]]
    cp cli/README.md cli/LICENSE-* "$stage/tool"
    pack "$stage/tool" "$dist/tool/octaplex-$version-$name"
  }
}

c_files() { # c_files SYSTEM: puts the C library into $stage/built, by the names that bindings/c/CMakeLists.txt installs
  local to=$stage/built rust
  rust=$(rustc --print sysroot)/lib
  case $1 in
    Darwin) cp "$built/liboctaplex_c.a" "$to/liboctaplex.a" ;;
    *) # without the debug information of Rust's own library
      LD_LIBRARY_PATH=$rust "$rust/rustlib/x86_64-unknown-linux-gnu/bin/rust-objcopy" --strip-debug "$built/liboctaplex_c.a" "$to/liboctaplex.a"
      ;;
  esac
  case $1 in
    Linux)
      cp "$built/liboctaplex_c.so" "$to/liboctaplex.so.$version"
      ln -s "liboctaplex.so.$version" "$to/liboctaplex.so.${version%.*}"
      ln -s "liboctaplex.so.${version%.*}" "$to/liboctaplex.so"
      # The oldest glibc that has all functions these libraries call.
      glibc_of "$built/liboctaplex_c.so" "$built/liboctaplex_ggml.so"
      ;;
    Darwin)
      cp "$built/liboctaplex_c.dylib" "$to/liboctaplex.$version.dylib"
      ln -s "liboctaplex.$version.dylib" "$to/liboctaplex.${version%.*}.dylib"
      ln -s "liboctaplex.${version%.*}.dylib" "$to/liboctaplex.dylib"
      ;;
    Windows)
      cp "$built/octaplex_c.dll" "$to/octaplex.dll"
      # Cargo's library for linking names another file.
      { echo EXPORTS; x86_64-w64-mingw32-objdump -p "$to/octaplex.dll" | awk '$NF ~ /^octaplex_/ { print $NF }'; } >"$stage/octaplex.def"
      (($(wc -l <"$stage/octaplex.def") > 20)) || { echo "octaplex.dll exports too little" >&2; exit 1; }
      python -m ziglang dlltool -m i386:x86-64 -D octaplex.dll -d "$stage/octaplex.def" -l "$to/liboctaplex.dll.a"
      cp "$to/liboctaplex.dll.a" "$to/octaplex.lib"
      ;;
  esac
}

glibc_of() { # glibc_of LIBRARY...: fails if one needs a glibc newer than 2.17
  local newest
  newest=$(readelf --version-info --wide "$@" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  echo "$newest is the newest version of glibc's functions"
  [[ $(printf '%s\n' "$newest" GLIBC_2.17 | sort -V | tail -n 1) == GLIBC_2.17 ]]
}

pack() { # pack FOLDER FILE: FILE.tar.gz, or FILE.zip for Windows, with one folder that has the file's name
  local parent name=${2##*/}
  parent=$(mktemp -d)
  cp -a "$1" "$parent/$name"
  find "$parent" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
  rm -f "$2.tar.gz" "$2.zip"
  case $name in
    *-windows) (cd "$parent" && python3 -m zipfile -c "$2.zip" "$name") ;;
    *) tar -C "$parent" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX -cf - "$name" | gzip -9n >"$2.tar.gz" ;;
  esac
  rm -r "$parent"
}

sizes() { # compares with the budget; fails if a file is missing, has none or is larger
  (cd "$dist" && find . -type f ! -name SHA256SUMS -printf '%s %P\n' | sed "s/$version/VERSION/" | LC_ALL=C sort -k 2) \
    | awk 'NR == FNR { if (!/^#/) most[$2] = $1; next }
      { found[$2] = 1; printf "%10d  %10d  %s\n", $1, most[$2], $2 }
      $1 > most[$2] { print "  this is more than ci/release/budget.txt has"; bad = 1 }
      END { for (name in most) if (!(name in found)) { print name " is missing"; bad = 1 }; exit bad }' ci/release/budget.txt -
}

make() { # make TARGET...
  local target
  mkdir -p "$dist" target
  same_version
  prepare
  for target in "$@"; do
    case $target in
      sources) sources ;;
      x86_64-linux) platform "$target" x86_64-unknown-linux-gnu x86_64-unknown-linux-musl Linux ;;
      aarch64-linux) platform "$target" aarch64-unknown-linux-gnu aarch64-unknown-linux-musl Linux ;;
      x86_64-windows) platform "$target" x86_64-pc-windows-gnu x86_64-pc-windows-gnu Windows ;;
      # The tool asks for the CPU's name by a framework of Apple's, which only a Mac has.
      aarch64-macos) platform "$target" aarch64-apple-darwin - Darwin ;;
      *) echo "ci/release.sh make: TARGET is one of ${all[*]}" >&2; exit 2 ;;
    esac
  done
  # shellcheck disable=SC2094 # the list does not contain itself
  (cd "$dist" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
}

case ${1:-} in
  "")
    rm -rf "$dist"
    make "${all[@]}"
    say "bytes, and the most that they may be"
    sizes
    ;;
  make) make "${@:2}" ;;
  sizes) sizes ;;
  test) exec ci/release/test.sh "${@:2}" ;;
  *) sed -n '5,8s/^# //p' "$0" >&2; exit 2 ;;
esac
say "passed"
