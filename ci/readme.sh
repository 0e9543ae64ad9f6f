#!/usr/bin/env bash
# Runs every command of README.md and of the pages below as it is printed: blocks marked `sh`, and commands within a line.
# `ci/suite.sh` runs the README's command for all tests, which also run its Rust blocks.
#
# usage: ci/readme.sh
#
# Small files replace those that a reader downloads: the two-layer model of the tool's tests for models, and letters of its
# alphabet for texts. The tool with language models is the development build (ci/tool.sh). SPEC becomes trellis, and D becomes
# 128. The longest commands take a quarter of the tokens. Everything is installed into target/readme.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_PROFILE_BENCH_DEBUG=0 # so that benchmarks and the tool share what they are built from
folder=$PWD/target/readme
rm -rf "$folder"
mkdir -p "$folder"

# Commands run in this folder, where their files stay. It is inside the workspace, so Cargo finds that.
root=$PWD
pages=(README.md docs/engine.md docs/platforms.md docs/models.md docs/codecs.md docs/choosing.md) # of commands
mapfile -t names < <(ci/printed.sh docs/models.md sh - | grep -oE '[A-Za-z0-9_.-]+\.(gguf|txt)' | sort -u)
cd "$folder"
../../ci/tool.sh tiny_model model text
for name in "${names[@]}"; do
  ../../ci/printed.sh ../../docs/models.md bash - | grep -E "(-o |>)$name( |$)" >/dev/null || { echo "docs/models.md does not say where $name comes from" >&2; exit 1; }
  case $name in
    *.gguf) cp model "$name" ;;
    *.txt) cp text "$name" ;;
  esac
done

run() { # run TITLE TEXT
  printf '\n-- %s (%ss)\n%s\n' "$1" "$SECONDS" "$2"
  bash -euo pipefail -c "$2" </dev/null
}
cargo() {
  case "$*" in
    "test --workspace --exclude octaplex-candle") echo "ci/suite.sh runs it" ;;
    "run --release -p octaplex-cli --features models -- "*)
      set -- "${@:8}"
      case $1 in
        sweep) set -- "${@/#512/128}" ;;
        needle) set -- "${@/#2048,4096/512,1024}" ;;
      esac
      ../../ci/tool.sh octaplex "$@"
      ;;
    "install --path cli --locked --features models") # a command in a folder of its own, which calls the development build
      mkdir -p "$MODELS"
      printf '#!/usr/bin/env bash\nset -- run --release -p octaplex-cli --features models -- "$@"\n%s\ncargo "$@"\n' "$(declare -f cargo)" >"$MODELS/octaplex"
      chmod +x "$MODELS/octaplex"
      ;;
    "run --example "*) # as the tests build it
      command cargo build -p octaplex -p octaplex-arch --features octaplex/std --example "$3" --locked
      "../debug/examples/$3"
      ;;
    "install --path "*) (cd ../.. && command cargo "$@") ;; # said in the root of a clone
    *) command cargo "$@" ;;
  esac
}
export -f cargo
export CARGO_INSTALL_ROOT=$folder/installed MODELS=$folder/models PATH=$folder/models:$folder/installed/bin:$PATH

../../ci/printed.sh ../../README.md
../../ci/printed.sh ../../docs/engine.md
../../ci/printed.sh ../../docs/models.md
rm -r "$MODELS"
../../ci/printed.sh ../../cli/README.md

# The Rust programs of the page on engines, on the library that `cargo run --example` above built.
mkdir engine
../../ci/printed.sh ../../docs/engine.md rust engine
command cargo build --quiet -p octaplex -p octaplex-arch --lib --features octaplex/std --locked
for program in engine/*; do
  rustc --edition 2024 --crate-name program "$program" --extern octaplex=../debug/liboctaplex.rlib -L dependency=../debug/deps -o "$program.run"
  run "program ${program#*/}" "$program.run"
done

# The README and the page that starts the book print the program of the example, and what it prints.
program=$(sed '1,/^$/d' ../../examples/quickstart.rs)
output=$(cargo run --example quickstart)
for page in README.md docs/start.md; do
  [[ $(../../ci/printed.sh "../../$page" rust -) == "$program" ]] || { echo "$page differs from examples/quickstart.rs" >&2; exit 1; }
  [[ $(../../ci/printed.sh "../../$page" text -) == *"$output"* ]] || { printf '%s lacks what the example prints:\n%s\n' "$page" "$output" >&2; exit 1; }
done

# The README's lines for a Cargo.toml are valid. This repository stands in for the published one.
for name in . metrics bindings/candle; do
  mkdir -p user/src
  {
    printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n'
    ../../ci/printed.sh "../../$name/README.md" toml - | sed "s#https://github.com/octaplex/octaplex#file://$root#"
  } >user/Cargo.toml
  touch user/src/lib.rs
  command cargo metadata --quiet --format-version 1 --manifest-path user/Cargo.toml >/dev/null
  rm -r user
done

# Commands within a line: code that begins with the tool, with cargo or with a variable for cargo.
tool() { cargo run --quiet --release --locked -p octaplex-cli -- "$@"; }
export -f tool
inline=0
while IFS= read -r command; do
  inline=$((inline + 1))
  case $command in
    'cargo add '*) # works once it is published; here the package must have this name
      grep -qx "name = \"${command##* }\"" ../../Cargo.toml ../../bindings/*/Cargo.toml && continue
      echo "no package has the name in: $command" >&2
      exit 1
      ;;
    *'--target wasm32'*) # ci/cross.sh has the compiler for it, and builds with these flags
      grep -qF -- '-C target-feature=+simd128' ../../ci/cross.sh && continue
      echo "ci/cross.sh does not build: $command" >&2
      exit 1
      ;;
  esac
  command=${command//SPEC/trellis}
  command=${command//--dim D/--dim 128}
  run "line" "octaplex() { tool \"\$@\"; }; $command"
done < <(cd ../.. && sed -s '/^```/,/^```/d' "${pages[@]}" | grep -oE '`(octaplex|cargo|RUSTFLAGS=[^`]*cargo) [^`]+`' | tr -d '`' | sort -u)

((inline >= 3)) || { echo "the pages have $inline lines of commands: too few to be true" >&2; exit 1; }
printf '\n%s commands within a line ran\n' "$inline"
