# Finds the backends of this CPU. Other scripts source it.
#
# It sets OCTAPLEX_REQUIRE, unless it is set, to the backends that tests must find. It sets `untested` to the backends
# that this CPU lacks. If Intel's emulator `sde64` is on the path, programs run in it, and AVX-512 counts as present.
cpu_has() { grep -qsw "$1" /proc/cpuinfo; }
declare -A has=()
! cpu_has avx2 || has[avx2]=1
! cpu_has avx_vnni || has[avx-vnni]=1
! cpu_has avx512_vnni || ! cpu_has avx512vbmi || has[avx512]=1
# Linux must let a process have tiles: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA).
! cpu_has amx_int8 || ! python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(158, 0x1023, 18) != 0)' || has[amx]=1
if [[ ! -v has[avx512] && ${OCTAPLEX_REQUIRE:-avx512} == *avx512* ]] && command -v sde64 >/dev/null; then
  export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="sde64 -spr --"
  has[avx-vnni]=1 has[avx512]=1
fi
required=scalar untested=
for backend in avx2 avx-vnni avx512 amx; do
  if [[ -v has[$backend] ]]; then required+=,$backend; else untested+=" $backend"; fi
done
export OCTAPLEX_REQUIRE=${OCTAPLEX_REQUIRE:-$required}
for backend in $untested; do
  [[ ,$OCTAPLEX_REQUIRE, != *,$backend,* ]] || { echo "OCTAPLEX_REQUIRE names $backend, which this CPU lacks" >&2; exit 1; }
done
