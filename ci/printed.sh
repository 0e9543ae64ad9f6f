#!/usr/bin/env bash
# ci/printed.sh FILE: runs the blocks of a README marked `sh` as they are printed, each in a shell of its own that starts in the
# current folder. Fails where there is none. Exported functions stand for what a script wants replaced (`cargo`, for one).
# ci/printed.sh FILE KIND -: prints the blocks of another kind.
set -euo pipefail
file=$1
blocks() { # blocks KIND: a NUL behind each
  awk -v kind="\`\`\`$1" '$0 == kind { inside = 1; next } /^```$/ { if (inside) printf "%c", 0; inside = 0 } inside' "$file"
}
if [[ ${3:-} == - ]]; then
  blocks "$2" | tr -d '\0'
  exit
fi
count=0
while IFS= read -r -d '' block; do
  count=$((count + 1))
  printf '\n-- %s: block %s (%ss)\n%s' "$file" "$count" "$SECONDS" "$block"
  bash -euo pipefail -c "$block" </dev/null
done < <(blocks sh)
((count)) || { echo "$file has no block of commands" >&2; exit 1; }
printf '\n%s: %s blocks ran\n' "$file" "$count"
