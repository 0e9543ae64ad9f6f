#!/usr/bin/env bash
# Tests of cards where there is none: HIP's libraries on this CPU (ci/hip-on-cpu), and on them the kernels' portable text, compiled by g++.
#   ci/card.sh            those below: every kernel, of codecs of every kind, and all that is refused
#   ci/card.sh NAME...    those of tests/gpu with such names; '' are all, an hour of CPU time
# ROCM_PATH=target/card and OCTAPLEX_CACHE are all that another program needs to find that card.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "ci/card.sh: fibers are written for x86-64"; exit; }
command -v g++ >/dev/null || ci/install.sh g++
folder=$PWD/target/card
mkdir -p "$folder/lib"
g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libamdhip64.so "-DCARD=\"$PWD/ci/hip-on-cpu/card.h\"" \
  ci/hip-on-cpu/stand_in.cpp -o "$folder/lib/libamdhip64.so" -ldl
cp "$folder/lib/libamdhip64.so" "$folder/lib/libhiprtc.so"
export ROCM_PATH=$folder OCTAPLEX_CACHE=$folder/images OCTAPLEX_REQUIRE=hip CARGO_TARGET_DIR=$folder/build CARGO_PROFILE_DEV_DEBUG=0
card() { cargo test -p octaplex -p octaplex-arch --features octaplex/hip --test gpu --locked -- "$@"; }
if (($#)); then
  card "$@"
  exit
fi
# What takes every pair of codecs at every width is for cards: these are the tests that take seconds here.
card sequences_forks_and_graphs
