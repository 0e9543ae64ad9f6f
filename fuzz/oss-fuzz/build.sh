#!/bin/bash -eu
# Builds all targets in OSS-Fuzz's container, and their seeds as archives. It has not run there.
cd "$SRC/octaplex"
cargo fuzz build -O --debug-assertions
for source in fuzz/targets/*.rs; do
  target=$(basename "$source" .rs)
  cp "fuzz/target/x86_64-unknown-linux-gnu/release/$target" "$OUT/"
  seeds=fuzz/corpus/$target
  [[ -d $seeds ]] || seeds=fuzz/corpus/roundtrip # an input begins alike
  zip -q -r -j "$OUT/${target}_seed_corpus.zip" "$seeds"
  options=fuzz/oss-fuzz/$target.options
  [[ ! -f $options ]] || cp "$options" "$OUT/"
done
