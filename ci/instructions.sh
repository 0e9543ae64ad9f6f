#!/usr/bin/env bash
# Counts the instructions of each codec's calls, for each row, with callgrind. Counts are the same on every machine with the same
# compiler, however busy it is. Valgrind knows no AVX-512, so other backends are counted.
#
# It also counts the instructions that change a thread's configuration of AMX tiles, which its host may have set. No CPU with AMX
# is needed for that.
#
# usage: ci/instructions.sh            fails if a call takes over 3% more than ci/instructions.txt says
#        ci/instructions.sh --bless    rewrites the table; the commit must say why a count grew
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || ci/install.sh valgrind
table=$PWD/ci/instructions.txt
# The same release build of the library as for the tool and the C interface.
program=$(CARGO_PROFILE_BENCH_DEBUG=0 cargo bench --quiet --locked --no-run --message-format=json-render-diagnostics -p octaplex --bench instructions --features std \
  | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')

# One function saves the host's configuration and loads ours; one loads the host's again, or releases tiles if there was none.
if [[ $(uname -m) == x86_64 ]]; then
  found=$(objdump -d --no-show-raw-insn "$program" | grep -oE '\b(sttilecfg|ldtilecfg|tilerelease)\b' | sort | uniq -c | xargs)
  [[ $found == "2 ldtilecfg 1 sttilecfg 1 tilerelease" ]] \
    || { echo "a configuration of tiles is set without saving the host's, or inlined: $found" >&2; exit 1; }
fi

folder=${CARGO_TARGET_DIR:-target}/instructions
rm -rf "$folder"
mkdir -p "$folder"
valgrind --quiet --tool=callgrind --collect-atstart=no --toggle-collect='instructions::measured*' \
  --dump-before='instructions::counted*' --callgrind-out-file="$folder/out" \
  "$program" >"$folder/calls"

calls=$(wc -l <"$folder/calls")
[[ -f $folder/out.$calls && ! -f $folder/out.$((calls + 2)) ]] || { echo "callgrind has not counted $calls calls" >&2; exit 1; }
new=$folder/table
{
  printf '%-10s %-20s %5s %-8s instructions a row, as %s compiles them\n' backend codec width call "$(rustc --version | cut -d' ' -f1,2)"
  i=0
  while read -r backend codec width call rows; do
    i=$((i + 1))
    total=$(sed -n 's/^summary: //p' "$folder/out.$i")
    printf '%-10s %-20s %5s %-8s %9s\n' "$backend" "$codec" "$width" "$call" $(((total + rows / 2) / rows))
  done <"$folder/calls"
} >"$new"
if [[ ${1:-} == --bless ]]; then
  cp "$new" "$table"
  exit
fi
awk 'FNR == 1 { head[NR != FNR] = $0; next }
  NR == FNR { old[$1 " " $2 " " $3 " " $4] = $5; next }
  { key = $1 " " $2 " " $3 " " $4; seen++ }
  !(key in old) { print key ": not in the table"; bad = 1; next }
  $5 > 1.03 * old[key] + 1 { print key ": " $5 " instructions a row, " old[key] " before"; bad = 1 }
  $5 < .97 * old[key] - 1 { fewer++ }
  END {
    if (head[0] != head[1]) print "Another compiler: its counts may differ.\n" head[0] "\n" head[1]
    if (seen != length(old)) { print "the table has " length(old) " calls, not " seen; bad = 1 }
    if (fewer) print fewer " calls take over 3% less: ci/instructions.sh --bless keeps that"
    if (!bad) print seen " calls take no more instructions than before"
    exit bad
  }' "$table" "$new"
