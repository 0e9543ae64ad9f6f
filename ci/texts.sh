#!/usr/bin/env bash
# Writes texts that docs/accuracy.md measures on, from released packages:
#   code.txt         the Python package click 8.1.7
#   languages.txt    Debian's FAQ 11.1 in German, Russian, Japanese, French, Chinese, Italian and Dutch, 24 lines each in turn
#   turns.txt        40 lines of code.txt and of languages.txt in turn, for long windows
# The page's other text is the test set of WikiText-2 raw, which this script does not download.
#
# usage: ci/texts.sh FOLDER      Needs pip and apt-get. It compares checksums.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
pip download -q --no-deps click==8.1.7
unzip -q click-8.1.7-*.whl
cat click/core.py click/parser.py click/types.py > "$folder/code.txt"
languages=(de ru ja fr zh-cn it nl)
for language in "${languages[@]}"; do
  apt-get download -qq "debian-faq-$language=11.1"
  dpkg -x "debian-faq-${language}_11.1_all.deb" faq
  # Skip blank lines and the table of contents.
  zcat "faq/usr/share/doc/debian/FAQ/debian-faq.$language.txt.gz" | grep -v '^ *$' | tail -n +340 > "$language.txt"
done
for turn in $(seq 0 11); do
  for language in "${languages[@]}"; do
    sed -n "$((turn * 24 + 1)),$((turn * 24 + 24))p" "$language.txt"
  done
done > "$folder/languages.txt"
for turn in $(seq 0 47); do
  for text in code languages; do
    sed -n "$((turn * 40 + 1)),$((turn * 40 + 40))p" "$folder/$text.txt"
  done
done > "$folder/turns.txt"
cd "$folder"
sha256sum -c - <<'SUMS'
afd74500ab392b970ce8ceed569af363579c1931d716efcf93cef827bfb8553f  code.txt
3803269378b3cb48faaaf0735cff842b11963e7f12d2cdcfe55457bce963305e  languages.txt
b33f37171ef787ae99ee6696b900df90f84feab5c1bbf96bb024b8cd44240049  turns.txt
SUMS
