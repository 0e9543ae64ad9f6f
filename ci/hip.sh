#!/usr/bin/env bash
# The device code that AMD's GPUs would run, compiled by clang (no ROCm needed; 14 knows gfx90a, 22 gfx1100 as well): decode attention
# with pages to the GPU and back, blocks of queries, rows of a caller's, and the encoders, keys with centres. Not part of CI, and
# never run on such a GPU: ci/hip-on-cpu runs the host's side. Attention's implementation, kernels/portable.cuh, runs on NVIDIA's too: tests/gpu/portable.rs.
#   ci/hip.sh [gfx90a gfx1100 ...]
set -euo pipefail
cd "$(dirname "$0")/../arch/device/kernels"
clang=${CLANG:-$(command -v clang-22 || echo clang)}
command -v "$clang" > /dev/null || { echo "ci/hip.sh: no $clang: install clang, or set CLANG" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# As arch/device/compile.rs puts them together.
text() {
    local name=$1
    { echo "namespace octaplex {"; cat hip.cuh "${@:2}"; echo "}"; } > "$folder/$name.hip"
}
sources() { # of a kind, from compile.rs: what it compiles and this are the same files
    tr -d '\n' < ../compile.rs | grep -o "Self::$1 => sources!([^)]*)" | grep -o '"[a-z_]*"' | tr -d '"' | sed 's/$/.cuh/'
}
for kind in Attend Block Encode Rows; do
    mapfile -t files < <(sources "$kind")
    ((${#files[@]} > 1)) || { echo "ci/hip.sh: compile.rs has no sources of $kind" >&2; exit 1; }
    text "${kind,,}" "${files[@]}"
done
# Every width, and every codec; codecs at the width of most models.
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
