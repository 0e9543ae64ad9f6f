#!/usr/bin/env bash
# Fuzzes with libFuzzer and AddressSanitizer, on the nightly compiler:
#   ci/fuzz.sh build              builds all targets
#   ci/fuzz.sh SECONDS TARGET...  runs these targets (all without a name) for so long each, from the committed corpus, and says for
#                                 each how many inputs were run, how many a second, and what was covered
# An input that fails is left in fuzz/artifacts/TARGET/. What is found besides lies in target/fuzz-corpus/.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-build} == build || $1 =~ ^[1-9][0-9]*$ ]] || { echo "usage: ci/fuzz.sh build | ci/fuzz.sh SECONDS [TARGET ...]; SECONDS is a number, not $1" >&2; exit 2; }

host=$(rustc -vV | sed -n 's/^host: //p')
rustc +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal

# The flags of `cargo fuzz build`, without the tool; but for `-Clink-dead-code`, which keeps what no target reaches.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/fuzz-asan}
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
-Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions"
cargo +nightly build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host"
[[ ${1:-build} != build ]] || exit 0

seconds=$1
shift
targets=("$@")
if ((!${#targets[@]})); then
  for target in fuzz/targets/*.rs; do targets+=("$(basename "$target" .rs)"); done
fi
failed=()
for target in "${targets[@]}"; do
  found=target/fuzz-corpus/$target artifacts=fuzz/artifacts/$target log=target/fuzz-corpus/$target.log
  mkdir -p "$found" "$artifacts"
  seeds=fuzz/corpus/$target
  [[ -d $seeds ]] || seeds=fuzz/corpus/roundtrip # of `decode` and `backends`: an input begins alike
  options=(-max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$artifacts/" -timeout=20 -rss_limit_mb=4096)
  asan=allocator_may_return_null=1
  # Handles that were freed are kept in builds with debug assertions, by intent.
  [[ $target != c_api ]] || asan+=:detect_leaks=0
  ASAN_OPTIONS=$asan \
    "$CARGO_TARGET_DIR/$host/release/$target" "${options[@]}" "$found" "$seeds" >"$log" 2>&1 || failed+=("$target")
  awk -v target="$target" '
    / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") coverage = $(i + 1) }
    /stat::number_of_executed_units/ { runs = $2 }
    /stat::average_exec_per_sec/ { rate = $2 }
    END { printf "%-12s %12d inputs, %6d a second, %6d edges\n", target, runs, rate, coverage }' "$log"
done
((!${#failed[@]})) || { echo "failed: ${failed[*]}; see target/fuzz-corpus/*.log and fuzz/artifacts" >&2; exit 1; }
