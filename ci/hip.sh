#!/usr/bin/env bash
# The device code that AMD's cards would run, compiled by clang (14 or later, no ROCm needed): pages to the card and back, and the
# encoders, of every codec and width, keys with centres. Not part of CI, and never run on a card.
#
# Attention is not among it: attend.cuh, lookup.cuh and block.cuh multiply matrices and copy with NVIDIA's own instructions (mma.sync,
# wgmma, cp.async, mbarrier), whose operands lie otherwise in AMD's registers. It takes a second text for those parts.
#   ci/hip.sh [gfx90a ...]
set -euo pipefail
cd "$(dirname "$0")/../arch/device/kernels"
clang=${CLANG:-clang}
command -v "$clang" > /dev/null || { echo "ci/hip.sh: no $clang: install clang, or set CLANG" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat hip.cuh layout.cuh exchange.cuh triplets.cuh encode.cuh > "$folder/encode.hip"
# Every width, and every codec; codecs at the width of most models.
shapes="64:2:13 80:3:12 96:4:11 192:11:4 256:12:3 128:2:2 128:3:3 128:4:4 128:11:11 128:12:12 128:13:13 64:34:38 64:104:158 80:138:134 128:144:118 192:38:34 80:20:34 128:20:4"
for card in "${@:-gfx90a}"; do
    for shape in $shapes; do
        IFS=: read -r dim keys values <<< "$shape"
        "$clang" -x hip --offload-arch="$card" --cuda-device-only -nogpulib -nogpuinc -std=c++17 -O2 -ffp-contract=off -Werror \
            -Wno-unused -Wno-pass-failed -DDIM="$dim" -DKEYS="$keys" -DVALUES="$values" -DCENTRES=1 -DTRIPLETS=1060 -S "$folder/encode.hip" -o "$folder/text"
    done
    echo "$card: upload, download, encode_keys, encode_values compiled, $(wc -w <<< "$shapes") pairs of codecs and width"
done
