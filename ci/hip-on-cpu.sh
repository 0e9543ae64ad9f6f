#!/usr/bin/env bash
# Tests of GPUs where there is none: HIP's libraries on this CPU (ci/hip-on-cpu), and on them the kernels' portable implementation, compiled by g++.
#   ci/hip-on-cpu.sh            those below: every kernel, of codecs of every kind, and all that is refused
#   ci/hip-on-cpu.sh NAME...    those of tests/gpu with such names; '' are all, an hour of CPU time
# ROCM_PATH=target/gpu and OCTAPLEX_CACHE are all that another program needs to find that GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "ci/hip-on-cpu.sh: fibers are written for x86-64"; exit; }
command -v g++ >/dev/null || ci/install.sh g++
folder=$PWD/target/gpu
mkdir -p "$folder/lib"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libamdhip64.so "-DGPU_H=\"$PWD/ci/hip-on-cpu/gpu.h\"" \
  ci/hip-on-cpu/stand_in.cpp -o "$folder/lib/libamdhip64.so" -ldl
cp "$folder/lib/libamdhip64.so" "$folder/lib/libhiprtc.so"
export ROCM_PATH=$folder OCTAPLEX_CACHE=$folder/images OCTAPLEX_REQUIRE=hip CARGO_TARGET_DIR=$folder/build CARGO_PROFILE_DEV_DEBUG=0
gpu() { cargo test -p octaplex -p octaplex-arch --features octaplex/hip --test gpu --locked -- "$@"; }
if (($#)); then
  gpu "$@"
  exit
fi
python3 ci/hip-on-cpu/bites.py "$folder/lib/libamdhip64.so"
# What takes every pair of codecs at every width is for GPUs. These are the tests that take seconds here, of all that a layer does:
# codecs of each kind in `every_option`, their encoders in `appended_specs_are_the_cpus`. Blocks of queries take minutes: by name.
tests=(
  missing_drivers_and_gpus_are_named unsupported_configurations_are_errors every_option sequences_forks_and_graphs
  append::appended_specs_are_the_cpus append::tokens_are_taken_back append::wrong_rows_are_errors
  bias::large_biases_and_hidden_tokens bias::wrong_biases_are_errors
  block::wrong_blocks_are_errors
  engine::an_engines_graph engine::calls_keep_their_place_in_a_stream engine::wrong_rows_of_an_engine_are_errors
  steps::steps_are_what_append_makes steps::an_engines_graph_appends steps::a_layer_grows
  snapshot::damaged_snapshots_change_nothing snapshot::pages_of_a_fork_stay_when_the_other_evicts snapshot::snapshots_are_the_cpus
)
gpu --exact "${tests[@]}" | tee "$folder/said"
grep -q "^test result: ok. ${#tests[@]} passed" "$folder/said" || { echo "ci/hip-on-cpu.sh: not the ${#tests[@]} tests that are named" >&2; exit 1; }
