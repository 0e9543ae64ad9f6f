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
# DIM:KEYS:VALUES[:OUTLIERS]. Every width, and every codec at the width of most models.
shapes="64:2:13 80:3:12 96:4:11 192:11:4 256:12:3 128:2:2 128:3:3 128:4:4 128:11:11 128:12:12 128:13:13 64:34:38 192:38:34 80:20:34 128:20:4 96:43:4 128:43:34 80:50:4 128:8:5 80:6:7 128:402:654 64:20:8 80:50:604 64:104:158 80:138:134 128:144:118 64:33:35 80:37:36 96:32:167 128:105:143 256:163:106 80:74:63 128:64:73 64:62:1 128:34:38:3 80:50:104:3 64:20:118:2"
for gpu in "${@:-gfx90a}"; do
    for text in attend block encode rows; do
        for shape in $shapes; do
            IFS=: read -r dim keys values outliers <<< "$shape"
            "$clang" -x hip --offload-arch="$gpu" --cuda-device-only -nogpulib -nogpuinc -std=c++17 -O2 -ffp-contract=off -Werror -Wno-unused \
                -Wno-pass-failed -DDIM="$dim" -DKEYS="$keys" -DVALUES="$values" -DCENTRES=1 -DTRIPLETS=1060 -DOUTLIERS="${outliers:-0}" -DOPTIONS=2 -S "$folder/$text.hip" -o "$folder/text"
        done
        kernels=$(sed -n 's/^ *\.name: *//p' "$folder/text" | tr '\n' ' ')
        echo "$gpu: ${kernels% } compiled, $(wc -w <<< "$shapes") pairs of codecs and width"
    done
done
