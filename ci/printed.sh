#!/usr/bin/env bash
# Runs or prints the code blocks of a Markdown file.
#
# usage: ci/printed.sh FILE           runs the blocks marked `sh` as they are printed; fails if there are none
#        ci/printed.sh FILE KIND -    prints the blocks marked KIND
#        ci/printed.sh FILE KIND DIR  writes each of them into a file: DIR/1, DIR/2, …
#
# Each block runs in a shell of its own, which starts in the current folder. A caller can replace a command, such as `cargo`, by
# exporting a function of that name.
set -euo pipefail
file=$1
blocks() { # blocks KIND: prints the blocks, a NUL after each
  awk -v kind="\`\`\`$1" '$0 == kind { inside = 1; next } /^```$/ { if (inside) printf "%c", 0; inside = 0 } inside' "$file"
}
if [[ ${3:-} == - ]]; then
  blocks "$2" | tr -d '\0'
  exit
fi
count=0
if [[ -n ${3:-} ]]; then
  while IFS= read -r -d '' block; do
    count=$((count + 1))
    printf '%s' "$block" >"$3/$count"
  done < <(blocks "$2")
  ((count)) || { echo "$file has no block marked $2" >&2; exit 1; }
  exit
fi
while IFS= read -r -d '' block; do
  count=$((count + 1))
  printf '\n-- %s: block %s (%ss)\n%s' "$file" "$count" "$SECONDS" "$block"
  bash -euo pipefail -c "$block" </dev/null
done < <(blocks sh)
((count)) || { echo "$file has no block of commands" >&2; exit 1; }
printf '\n%s: %s blocks ran\n' "$file" "$count"
