#!/usr/bin/env bash
# Checks that the GPU kernels compile for AMD, with clang and without ROCm: decode attention and the copies of pages, blocks of
# queries, rows of a caller, and encoders. It compiles every width and every codec, for keys with centres.
#
# usage: ci/hip.sh [ARCHITECTURE...]      gfx90a by default; clang 14 knows gfx90a, clang 22 also gfx1100
#
# CLANG is the compiler: clang-22 by default if it is installed, otherwise clang. This script is not part of .ci/run.
#
# Nothing here has run on an AMD GPU. ci/hip-on-cpu.sh tests the host's side, and tests/gpu/portable.rs runs the implementation
# of attention for AMD, kernels/portable.cuh, on NVIDIA GPUs.
set -euo pipefail
cd "$(dirname "$0")/../arch/device/kernels"
clang=${CLANG:-$(command -v clang-22 || echo clang)}
command -v "$clang" > /dev/null || { echo "ci/hip.sh: no $clang: install clang, or set CLANG" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Joins sources as arch/device/compile.rs does.
text() {
    local name=$1
    { echo "namespace octaplex {"; cat hip.cuh "${@:2}"; echo "}"; } > "$folder/$name.hip"
}
sources() { # sources KIND: the files of a kind of kernel, read from compile.rs, so that both compile the same files
    tr -d '\n' < ../compile.rs | grep -o "Self::$1 => sources!([^)]*)" | grep -o '"[a-z_]*"' | tr -d '"' | sed 's/$/.cuh/'
}
for kind in Attend Block Encode Rows; do
    mapfile -t files < <(sources "$kind")
    ((${#files[@]} > 1)) || { echo "ci/hip.sh: compile.rs has no sources of $kind" >&2; exit 1; }
    text "${kind,,}" "${files[@]}"
done
# DIM KEYS VALUES [OUTLIERS], shapes as in layout.cuh. Every width, and every codec at the width of most models.
shapes=(
    "64 codes_of(2) trellis_of(3)" "80 codes_of(3) trellis_of(2)" "96 codes_of(4) trellis_of(1)" "192 trellis_of(1) codes_of(4)"
    "256 trellis_of(2) codes_of(3)" "128 codes_of(2) codes_of(2)" "128 codes_of(3) codes_of(3)" "128 codes_of(4) codes_of(4)"
    "128 trellis_of(1) trellis_of(1)" "128 trellis_of(2) trellis_of(2)" "128 trellis_of(3) trellis_of(3)"
    "64 integers_of(4) integers_of(8)" "192 integers_of(8) integers_of(4)" "80 shape_of(Kind::Triplets,0) integers_of(4)"
    "128 shape_of(Kind::Triplets,0) codes_of(4)" "96 shape_of(Kind::Blocks,3) codes_of(4)"
    "128 shape_of(Kind::Blocks,3) integers_of(4)" "80 shape_of(Kind::Chunks,0) codes_of(4)"
    "128 shape_of(Kind::Indexed,8) shape_of(Kind::Indexed,5)" "80 shape_of(Kind::Indexed,6) shape_of(Kind::Indexed,7)"
    "128 shape_of(Kind::Indexed,2,4) shape_of(Kind::Indexed,4,6,3)" "64 shape_of(Kind::Triplets,0) shape_of(Kind::Indexed,8)"
    "80 shape_of(Kind::Chunks,0) shape_of(Kind::Indexed,4,6)"
    "64 shape_of(Kind::Groups,4,0,1,4,0) shape_of(Kind::Groups,8,0,1,6,1)"
    "80 shape_of(Kind::Groups,8,0,1,4,1) shape_of(Kind::Groups,4,0,1,4,1)"
    "128 shape_of(Kind::Groups,4,0,1,5,1) shape_of(Kind::Groups,8,0,1,5,0)" "64 integers_of(3) integers_of(5)"
    "80 integers_of(7) integers_of(6)" "96 integers_of(2) shape_of(Kind::Groups,7,0,1,0,1)"
    "128 shape_of(Kind::Groups,5,0,1,4,0) shape_of(Kind::Groups,3,0,1,5,1)"
    "256 shape_of(Kind::Groups,3,0,1,0,1) shape_of(Kind::Groups,6,0,1,4,0)"
    "80 shape_of(Kind::Indexed,4,0,5) shape_of(Kind::Indexed,3,0,3)"
    "128 shape_of(Kind::Indexed,4,0,3) shape_of(Kind::Indexed,3,0,5)"
    "64 shape_of(Kind::Indexed,2,0,3) shape_of(Kind::Indexed,1)" "128 integers_of(4) integers_of(8) 3"
    "80 shape_of(Kind::Chunks,0) shape_of(Kind::Groups,4,0,1,4,0) 3"
    "64 shape_of(Kind::Triplets,0) shape_of(Kind::Groups,8,0,1,5,0) 2"
)
for gpu in "${@:-gfx90a}"; do
    for text in attend block encode rows; do
        for shape in "${shapes[@]}"; do
            read -r dim keys values outliers <<< "$shape"
            "$clang" -x hip --offload-arch="$gpu" --cuda-device-only -nogpulib -nogpuinc -std=c++17 -O2 -ffp-contract=off -Werror -Wno-unused \
                -Wno-pass-failed -DDIM="$dim" -DKEYS="$keys" -DVALUES="$values" -DCENTRES=1 -DTRIPLETS=1060 -DOUTLIERS="${outliers:-0}" -DOPTIONS=2 -S "$folder/$text.hip" -o "$folder/text"
        done
        kernels=$(sed -n 's/^ *\.name: *//p' "$folder/text" | tr '\n' ' ')
        echo "$gpu: ${kernels% } compiled, ${#shapes[@]} pairs of codecs and width"
    done
done
