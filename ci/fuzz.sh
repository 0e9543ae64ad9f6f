#!/usr/bin/env bash
# Fuzzes with libFuzzer and AddressSanitizer, on the nightly compiler.
#
# usage: ci/fuzz.sh build                   builds all targets
#        ci/fuzz.sh SECONDS [TARGET...]     fuzzes each target for this time, from the committed corpus on. Prints inputs,
#                                           inputs a second, and covered edges.
#        ci/fuzz.sh coverage [TARGET...]    runs each target once on the committed corpus and on inputs found since. Prints
#                                           the lines of the library that it reached. It uses the usual compiler, without
#                                           the sanitizer.
#
# Without a TARGET it takes all of fuzz/targets/. Inputs that fail go to fuzz/artifacts/TARGET/, other new inputs to
# target/fuzz-corpus/.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-build} =~ ^(build|coverage|[1-9][0-9]*)$ ]] \
  || { echo "usage: ci/fuzz.sh build | ci/fuzz.sh coverage|SECONDS [TARGET ...]; SECONDS is a number, not $1" >&2; exit 2; }

host=$(rustc -vV | sed -n 's/^host: //p')
targets=("${@:2}")
if ((!${#targets[@]})); then
  for target in fuzz/targets/*.rs; do targets+=("$(basename "$target" .rs)"); done
fi
seeds_of() { # `decode` and `backends` use the corpus of `roundtrip`, because their inputs begin alike
  [[ -d fuzz/corpus/$1 ]] && echo "fuzz/corpus/$1" || echo fuzz/corpus/roundtrip
}

# Prints a line for each target and a line for all together. Then lists files in which less than nine tenths of the lines
# were reached.
coverage() {
  local tools built target name out=$PWD/target/fuzz-coverage objects=()
  tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
  [[ -x $tools/llvm-cov ]] || rustup component add llvm-tools
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$out}
  built=$CARGO_TARGET_DIR/$host/release
  RUSTFLAGS="-Cinstrument-coverage --cfg fuzzing" \
    cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host"
  mkdir -p "$out" && rm -f "$out"/*.profraw "$out"/*.profdata
  for target in fuzz/targets/*.rs; do objects+=(-object "$built/$(basename "$target" .rs)"); done
  # Files, not folders: without a sanitizer's counters libFuzzer takes nothing else.
  for target in "${targets[@]}"; do
    mkdir -p "target/fuzz-corpus/$target"
    find "$(seeds_of "$target")" "target/fuzz-corpus/$target" -type f -print0 \
      | LLVM_PROFILE_FILE=$out/$target-%m.profraw xargs -0 -n 500 "$built/$target" >"$out/$target.log" 2>&1 \
      || { cat "$out/$target.log" >&2; exit 1; }
    "$tools/llvm-profdata" merge -sparse "$out/$target"-*.profraw -o "$out/$target.profdata"
  done
  "$tools/llvm-profdata" merge -sparse "$out"/*.profdata -o "$out/together.profdata"
  for name in "${targets[@]}" together; do
    "$tools/llvm-cov" export -format=lcov -summary-only -instr-profile="$out/$name.profdata" "${objects[@]}" >"$out/$name.lcov"
    awk -F: -v name="$name" -v root="$PWD/" '
      $1 == "SF" { sub(/fuzz\/\.\.\//, "", $2); part = index($2, root) == 1 ? substr($2, length(root) + 1) : "" }
      $1 == "SF" { sub(/^bindings\/c\/src\/.*/, "c", part) || sub(/^cli\/src\/(npy|input)\.rs/, "readers", part) || sub(/\/.*/, "", part) }
      $1 == "LF" { lines[part] += $2 }
      $1 == "LH" { reached[part] += $2 }
      END {
        printf "%-12s", name
        split("src arch c readers", parts, " ")
        for (i = 1; i <= 4; i++) printf "  %s %d of %d", parts[i], reached[parts[i]], lines[parts[i]]
        print ""
      }' "$out/$name.lcov"
  done
  awk -F: -v root="$PWD/" '
    $1 == "SF" { file = substr($2, length(root) + 1) }
    $1 == "LF" { lines = $2 }
    $1 == "LH" && file ~ /^(src|arch|bindings)/ && $2 < .9 * lines { printf "%4d of %4d  %s\n", $2, lines, file }
  ' "$out/together.lcov" | sort -k4
}
if [[ ${1:-} == coverage ]]; then
  coverage
  exit
fi

rustc +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal

# The flags of `cargo fuzz build`, except `-Clink-dead-code`, which keeps code that no target reaches.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/fuzz-asan}
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
-Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions"
cargo +nightly build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host"
[[ ${1:-build} != build ]] || exit 0

seconds=$1
failed=()
for target in "${targets[@]}"; do
  found=target/fuzz-corpus/$target artifacts=fuzz/artifacts/$target log=target/fuzz-corpus/$target.log
  mkdir -p "$found" "$artifacts"
  options=(-max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$artifacts/" -timeout=20 -rss_limit_mb=4096)
  asan=allocator_may_return_null=1
  # Handles that were freed are kept in builds with debug assertions, by intent.
  [[ $target != c_api ]] || asan+=:detect_leaks=0
  ASAN_OPTIONS=$asan \
    "$CARGO_TARGET_DIR/$host/release/$target" "${options[@]}" "$found" "$(seeds_of "$target")" >"$log" 2>&1 || failed+=("$target")
  awk -v target="$target" '
    / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") coverage = $(i + 1) }
    /stat::number_of_executed_units/ { runs = $2 }
    /stat::average_exec_per_sec/ { rate = $2 }
    END { printf "%-12s %12d inputs, %6d a second, %6d edges\n", target, runs, rate, coverage }' "$log"
done
((!${#failed[@]})) || { echo "failed: ${failed[*]}; see target/fuzz-corpus/*.log and fuzz/artifacts" >&2; exit 1; }
