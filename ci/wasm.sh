#!/usr/bin/env bash
# The npm package of bindings/wasm: builds its modules, holds their sizes against sizes.txt, packs it, and tests what a fresh
# project gets, under Node and in headless Chromium. `ci/wasm.sh --bless` writes the sizes; `ci/wasm.sh bench` only says what a
# call costs over the library alone, in the package of the last run.
set -euo pipefail
cd "$(dirname "$0")/.."
room=$PWD/bindings/wasm
export CARGO_TARGET_DIR=$PWD/target/cross/npm
target=wasm32-unknown-unknown
project=$CARGO_TARGET_DIR/project

cargo=(cargo)
options=(--quiet --release --locked --target $target)
if ! [[ -d $(rustc --print target-libdir --target $target) ]]; then
  [[ -d /usr/lib/rustlib/src/rust/library ]] || { echo "rustup target add $target, or apt-get install rustc-web rust-web-src lld" >&2; exit 1; }
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
  options+=(-Z build-std=core,alloc)
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
fi

build() { # build FLAGS MANIFEST FEATURES...: with these target features
  RUSTFLAGS=$1 "${cargo[@]}" build "${options[@]}" --manifest-path "$2" "${@:3}"
}
built=$CARGO_TARGET_DIR/$target/release

if [[ ${1:-} == bench ]]; then
  build "-C target-feature=+simd128" "$room/bench/Cargo.toml"
  cp "$room/bench/score.mjs" "$project"
  cd "$project"
  exec node score.mjs "$built/bench.wasm"
fi

sizes=$(mktemp)
trap 'rm -f "$sizes"' EXIT
echo "module   bytes gzipped" >"$sizes"
keep() { # keep NAME FILE: the module just built
  cp "$built/octaplex_wasm.wasm" "$2"
  printf '%-6s %9s %7s\n' "$1" "$(wc -c <"$2")" "$(gzip -9 -n -c "$2" | wc -c)" >>"$sizes"
}
build "-C target-feature=+simd128" "$room/Cargo.toml"
keep simd "$room/js/octaplex.simd.wasm"
build "" "$room/Cargo.toml"
keep plain "$room/js/octaplex.wasm"
CARGO_PROFILE_RELEASE_OPT_LEVEL=s build "" "$room/Cargo.toml" --no-default-features --features turboquant
keep one "$CARGO_TARGET_DIR/one.wasm"
cat "$sizes"
[[ ${1:-} != --bless ]] || cp "$sizes" "$room/sizes.txt"
awk 'FNR > 1 && NR == FNR { was[$1] = $3; next }
  FNR > 1 && $3 > 1.1 * was[$1] { print $1 " has grown by more than a tenth"; bad = 1 }
  $1 == "one" && $3 >= 42000 { print "one codec is to be under 42 kB"; bad = 1 }
  END { exit bad }' "$room/sizes.txt" "$sizes"

# What `npm install` gives a project.
cp LICENSE-* "$room"
rm -rf "$project"
mkdir -p "$project"
(cd "$room" && npm pack --silent --pack-destination "$project")
cp "$room"/test/* "$project"
cd "$project"
echo '{ "private": true, "type": "module" }' >package.json
npm install --silent --no-audit --no-fund ./octaplex-*.tgz typescript@5
files=$(cd node_modules/octaplex && find . -type f | sort | tr '\n' ' ')
expected="./LICENSE-APACHE ./LICENSE-MIT ./README.md ./js/cache.js ./js/codec.js ./js/error.js ./js/index.d.ts ./js/index.js ./js/memory.js ./js/octaplex.simd.wasm ./js/octaplex.wasm ./package.json "
[[ $files == "$expected" ]] || { echo "the package has: $files" >&2; exit 1; }

node --test package.test.mjs
npx tsc --noEmit --strict --target esnext --module nodenext --lib esnext,dom types.ts
# The README's lines, as they stand there; with the build of one codec, too.
sed -n '/^```js$/,/^```$/p' node_modules/octaplex/README.md | sed '1d;$d' >readme.mjs
[[ $(wc -l <readme.mjs) == 5 ]]
said=$(node readme.mjs)
[[ $said == "4096 "* ]] || { echo "the README's lines say: $said" >&2; exit 1; }
cp "$CARGO_TARGET_DIR/one.wasm" .
node one.mjs
node browser.mjs "$project" package.html
