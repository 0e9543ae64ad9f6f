#!/usr/bin/env bash
# Runs the tests of the workspace, by the README's command for all of them.
#
# usage: ci/suite.sh
#        ci/suite.sh pages         only the tests that read pages or sources, and the README's Rust blocks
#        ci/suite.sh PACKAGE...    only the tests of these packages
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == pages ]]; then
  tests=(cargo test -p octaplex --features std --locked) # the features that the whole workspace gives it
  "${tests[@]}" --test suite -- architecture:: choosing:: rates:: trellis::distortions_are_the_documented_ones
  "${tests[@]}" --doc -- Readme
elif (($#)); then
  cargo test "${@/#/--package=}" --locked
else
  command=$(ci/printed.sh README.md sh - | grep '^cargo test ')
  [[ $(wc -l <<<"$command") == 1 ]] || { echo "README.md has not one command for all tests: $command" >&2; exit 1; }
  bash -euo pipefail -c "$command"
fi
