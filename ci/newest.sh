#!/usr/bin/env bash
# Tests octaplex in the newest releases of transformers, xllamacpp, node-llama-cpp and llama-cpp-python. A person
# starts it each week; it is not part of .ci/run, because it downloads gigabytes and others' releases may break it.
#
# usage: ci/newest.sh             all scripts
#        ci/newest.sh NAME...     some: transformers, llama, llama/programs
#
# Each script gets OCTAPLEX_NEWEST=1, which makes it install the newest versions, not those that it pins. The end says which failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export OCTAPLEX_NEWEST=1
failed=()
(($#)) || set -- transformers llama llama/programs
for name in "$@"; do
  printf '\n== ci/%s.sh with the newest versions\n' "$name"
  "ci/$name.sh" || failed+=("$name")
done
printf '\n'
if ((${#failed[@]})); then
  echo "ci/newest.sh: failed with the newest versions: ${failed[*]}" >&2
  exit 1
fi
echo "ci/newest.sh: all passed with the newest versions: $*"
