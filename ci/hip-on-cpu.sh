#!/usr/bin/env bash
# Runs GPU tests on a machine without a GPU. ci/hip-on-cpu has stand-ins for HIP's libraries. They compile the portable
# implementation of the kernels with g++, and run it on this CPU.
#
# usage: ci/hip-on-cpu.sh            the tests listed below: every kernel, with codecs of every kind, and every refusal
#        ci/hip-on-cpu.sh NAME...    the tests of tests/gpu whose names contain NAME; '' runs all, which takes an hour of CPU time
#
# To run another program on this GPU, set ROCM_PATH=target/gpu and OCTAPLEX_CACHE to a folder.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "ci/hip-on-cpu.sh: fibers are written for x86-64"; exit; }
command -v g++ >/dev/null || ci/install.sh g++
folder=$PWD/target/gpu
mkdir -p "$folder/lib"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libamdhip64.so "-DGPU_H=\"$PWD/ci/hip-on-cpu/gpu.h\"" \
  ci/hip-on-cpu/stand_in.cpp -o "$folder/lib/libamdhip64.so" -ldl
cp "$folder/lib/libamdhip64.so" "$folder/lib/libhiprtc.so"
export ROCM_PATH=$folder OCTAPLEX_CACHE=$folder/images OCTAPLEX_REQUIRE=hip
# With these features, ci/tests.sh has built the tests.
gpu() { cargo test -p octaplex --features cuda,hip,rayon,serde --test gpu --locked -- "$@"; }
if (($#)); then
  gpu "$@"
  exit
fi
python3 ci/hip-on-cpu/bites.py "$folder/lib/libamdhip64.so"
# Tests of every pair of codecs at every width need a GPU. These take seconds here, and cover all that a layer does:
# `every_option` has codecs of each kind, `appended_specs_are_the_cpus` their encoders. Blocks of queries take minutes; run
# them by name.
tests=(
  missing_drivers_and_gpus_are_named unsupported_configurations_are_errors every_option sequences_forks_and_graphs
  append::appended_specs_are_the_cpus append::tokens_are_taken_back append::wrong_rows_are_errors
  bias::large_biases_and_hidden_tokens bias::wrong_biases_are_errors
  cells::cells_are_the_cpus cells::codecs_without_kernels_are_refused cells::rows_that_cannot_be_held_are_lost
  block::wrong_blocks_are_errors
  engine::an_engines_graph engine::calls_keep_their_place_in_a_stream engine::wrong_rows_of_an_engine_are_errors
  steps::steps_are_what_append_makes steps::steps_begin_with_nothing steps::an_engines_graph_appends steps::a_layer_grows
  snapshot::damaged_snapshots_change_nothing snapshot::pages_of_a_fork_stay_when_the_other_evicts snapshot::snapshots_are_the_cpus
)
gpu --exact "${tests[@]}" | tee "$folder/said"
grep -q "^test result: ok. ${#tests[@]} passed" "$folder/said" || { echo "ci/hip-on-cpu.sh: not the ${#tests[@]} tests that are named" >&2; exit 1; }
