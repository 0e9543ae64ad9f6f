#!/usr/bin/env bash
# Counts functions and bytes of machine code in each module of `octaplex-arch`, in its release build for x86-64. Kernels are
# generic over registers, shapes and numbers of queries, so a change can double them unnoticed.
#
# usage: ci/instances.sh            fails if a module has over 10% more functions or bytes than ci/instances.txt says
#        ci/instances.sh --bless    rewrites the table; the commit must say why a number grew
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "ci/instances.sh: the table is for x86-64"; exit; }
table=$PWD/ci/instances.txt
# The same release build of the kernels as for the tool, the C interface and ci/instructions.sh.
library=$(cargo build --quiet --release --locked -p octaplex --features std --message-format=json-render-diagnostics \
  | grep -o '"[^"]*/liboctaplex_arch-[0-9a-f]*\.rlib"' | head -n 1 | tr -d '"')
new=${CARGO_TARGET_DIR:-target}/instances.txt
# A function belongs to the first module of ours in its name: of its path, or of the types that it is for. Those of `core` that
# are not inlined name none.
{
  nm --radix=d --print-size --defined-only --demangle "$library" 2>/dev/null | awk '
    $3 !~ /^[tTwW]$/ { next }
    {
      module = "core"
      if (match($0, /octaplex_arch::[a-z0-9_]+(::[a-z0-9_]+)?/)) {
        split(substr($0, RSTART, RLENGTH), part, "::")
        module = part[2] (part[3] ~ /^(scalar|portable|wide|avx2|avx512|layout|search|hadamard|baseline)$/ ? "/" part[3] : "")
      }
      functions[module]++
      bytes[module] += $2
    }
    END { for (module in functions) printf "%-24s %9d %9d\n", module, functions[module], bytes[module] }' | LC_ALL=C sort
} >"$new"
(($(wc -l <"$new") > 20)) || { echo "ci/instances.sh: $library has too few modules" >&2; exit 1; }
if [[ ${1:-} == --bless ]]; then
  { echo "# module                functions     bytes    as $(rustc --version | cut -d' ' -f1,2) compiles them"; cat "$new"; } >"$table"
  exit
fi
awk '/^#/ { next }
  NR == FNR { functions[$1] = $2; bytes[$1] = $3; next }
  { all += $2; size += $3 }
  $2 > 1.1 * functions[$1] + 2 || $3 > 1.1 * bytes[$1] + 1000 {
    printf "%s: %d functions of %d bytes, %d of %d before\n", $1, $2, $3, functions[$1], bytes[$1]
    bad = 1
  }
  END { print all " functions of " size " bytes"; exit bad }' "$table" "$new"
