#!/usr/bin/env bash
# Tests the npm package of bindings/wasm. It builds the modules and the demo page, compares sizes with bindings/wasm/sizes.txt, and
# packs the package. It then tests the package in a fresh project, under Node and in headless Chromium, and the page in Chromium.
#
# usage: ci/wasm.sh
#        ci/wasm.sh --bless    rewrites sizes.txt
#        ci/wasm.sh bench      prints how much a call from JavaScript costs on top of the library, with the package of the last run
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
package=$root/bindings/wasm
export CARGO_TARGET_DIR=$PWD/target/cross/npm
project=$CARGO_TARGET_DIR/project

if [[ ${1:-} == bench ]]; then
  "$package/build.sh" bench "$CARGO_TARGET_DIR/bench.wasm"
  cp "$package/bench/score.mjs" "$project"
  cd "$project"
  exec node score.mjs "$CARGO_TARGET_DIR/bench.wasm"
fi

command -v "${CHROMIUM:-chromium}" >/dev/null || ci/install.sh chromium
# rustup's target, or Debian's compiler as in ci/cross.sh, which may not have run yet.
if ! [[ -d $(rustc --print target-libdir --target wasm32-unknown-unknown) ]]; then
  if ! [[ -d /usr/lib/rustlib/src/rust/library ]] || ! command -v wasm-ld >/dev/null; then ci/install.sh rustc-web rust-web-src lld; fi
fi
# Run the README's commands in an empty project.
rm -rf "$project"
mkdir -p "$project"
echo '{ "private": true, "type": "module" }' >"$project/package.json"
rm -f "$package"/js/*.wasm
! npm pack --silent "$package" --pack-destination "$project" 2>"$project/said" || { echo "a package without modules was packed" >&2; exit 1; }
grep -F "First build the modules" "$project/said"
PROJECT=$project ci/printed.sh bindings/wasm/README.md
"$package/build.sh" one "$CARGO_TARGET_DIR/one.wasm"
sizes=$(mktemp)
trap 'rm -f "$sizes"' EXIT
echo "module   bytes gzipped  brotli" >"$sizes"
size() { # size NAME FILE
  local brotli='const z = require("node:zlib"); console.log(z.brotliCompressSync(require("node:fs").readFileSync(process.argv[1])).length)'
  printf '%-7s %9s %7s %7s\n' "$1" "$(wc -c <"$2")" "$(gzip -9 -n -c "$2" | wc -c)" "$(node -e "$brotli" "$2")" >>"$sizes"
}
size simd "$package/js/octaplex.simd.wasm"
size plain "$package/js/octaplex.wasm"
size allsimd "$package/js/octaplex.all.simd.wasm"
size all "$package/js/octaplex.all.wasm"
size one "$CARGO_TARGET_DIR/one.wasm"
cat "$sizes"
[[ ${1:-} != --bless ]] || cp "$sizes" "$package/sizes.txt"
awk 'FNR > 1 && NR == FNR { was[$1] = $3; next }
  FNR > 1 && $3 > 1.1 * was[$1] { print $1 " has grown by more than a tenth"; bad = 1 }
  $1 == "plain" && $3 >= 260000 { print "the recommended codecs without SIMD128 are to be under 260 kB"; bad = 1 }
  $1 == "one" && $3 >= 42500 { print "one codec is to be under 42.5 kB"; bad = 1 }
  END { exit bad }' "$package/sizes.txt" "$sizes"

# Test what a project has now.
cp "$package"/test/* tests/snapshots/*.snapshot profiles/smollm2-135m.octaprofile "$project"
cd "$project"
npm install --silent --no-audit --no-fund typescript@5 playwright-core@1 axe-core@4
files=$(cd node_modules/octaplex && find . -type f | sort | tr '\n' ' ')
expected="./LICENSE-APACHE ./LICENSE-MIT ./README.md ./js/cache.js ./js/codec.js ./js/error.js ./js/index.d.ts ./js/index.js ./js/memory.js ./js/octaplex.all.simd.wasm ./js/octaplex.all.wasm ./js/octaplex.simd.wasm ./js/octaplex.wasm ./package.json "
[[ $files == "$expected" ]] || { echo "the package has: $files" >&2; exit 1; }

node --test load.test.mjs package.test.mjs
npx tsc --noEmit --strict --target esnext --module nodenext --lib esnext,dom types.ts
# The README's lines, as they stand there; with the build of one codec, too.
"$root/ci/printed.sh" node_modules/octaplex/README.md js - >readme.mjs
lines=$(wc -l <readme.mjs)
((lines == 10)) || { echo "the README has $lines lines of JavaScript, not the 10 that are tested here" >&2; exit 1; }
said=$(node readme.mjs)
[[ $said == "4096 "*$'\n'"graded graded:fine=2,coarse=1" ]] || { echo "the README's lines say: $said" >&2; exit 1; }
# The book's first program, and its output.
"$root/ci/printed.sh" "$root/docs/start.md" js - >start.mjs
said=$(node start.mjs)
[[ $("$root/ci/printed.sh" "$root/docs/start.md" text -) == *"$said"* ]] || { echo "docs/start.md lacks what its lines of JavaScript say: $said" >&2; exit 1; }
cp "$CARGO_TARGET_DIR/one.wasm" .
node one.mjs
node browser.mjs "$project" package.html
# The page, from a static file server.
CHROMIUM=$(command -v "${CHROMIUM:-chromium}") SITE=$package/site MEASURED=$root/docs/plots/sample.txt node --test demo.test.mjs
