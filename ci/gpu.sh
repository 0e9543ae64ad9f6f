#!/usr/bin/env bash
# Runs all GPU tests, of the library, the tool and the Python package, on a machine with a GPU. The tool's have not run yet.
#
# usage: ci/gpu.sh            everything: 9 minutes on an H100 with 16 CPU cores, mostly to compile kernels
#        ci/gpu.sh NAME...    the tests in Rust whose names contain a NAME
#
# Each test in Rust has a process of its own, because NVRTC compiles one kernel at a time in a process. There are as many as CPU
# cores, but not more than one for each 4 GB of free GPU memory.
#
# It prints what is missing. Without a GPU nothing fails, and each suite says why it did not run. With OCTAPLEX_REQUIRE=cuda
# anything missing is a failure.
#
# OCTAPLEX_RUNS         the runs of test_transformers_random.py, 200 by default
# OCTAPLEX_GPU_PYTHON   the Python with PyTorch and transformers, python3 by default; the package is built for it
# OCTAPLEX_GPU_KIT      for a machine without Rust: a folder with `gpu-tests`, the binary of the tests in Rust, and `octaplex`,
#                       the Python package with its extension, both built elsewhere
set -euo pipefail
cd "$(dirname "$0")/.."
python=${OCTAPLEX_GPU_PYTHON:-python3} kit=${OCTAPLEX_GPU_KIT:-}
missing=0 failed=0
lack() { echo "ci/gpu.sh: $1"; missing=1; }
fail() { echo "ci/gpu.sh: $1" >&2; failed=1; }

processes=1
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null; then
  free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -n 1)
  processes=$((free / 4096 < $(nproc) ? free / 4096 : $(nproc)))
  processes=$((processes > 1 ? processes : 1))
else
  lack "no NVIDIA GPU: nvidia-smi does not list one"
fi

run() { # run TEST: runs it, and prints its time; and its output if it failed or skipped something
  local log start=$SECONDS status=0
  log=$(mktemp)
  "$binary" --exact "$1" --nocapture >"$log" 2>&1 || status=$?
  printf '%-75s %4s s  %s\n' "$1" $((SECONDS - start)) "$( ((status)) && echo FAILED || echo passed)"
  if ((status)); then cat "$log"; else grep '^skipped' "$log" || true; fi
  rm "$log"
  return "$status"
}
binary=
if [[ -n $kit && -x $kit/gpu-tests ]]; then
  binary=$kit/gpu-tests
elif command -v cargo >/dev/null; then
  binary=$(cargo test -p octaplex --features cuda --test gpu --locked --no-run 2>&1 | tee /dev/stderr \
    | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
else
  lack "no cargo: Rust's tests do not run"
fi
package=
if (($#)); then
  : # only tests in Rust were named
elif ! "$python" -c 'import torch, transformers, pytest' 2>/dev/null; then
  lack "$python has not all of torch, transformers and pytest: Python's tests do not run"
elif [[ -d $kit/octaplex ]]; then
  package=$(cd "$kit" && pwd)
elif command -v cargo >/dev/null; then
  package=$PWD/target/gpu
  CARGO_TARGET_DIR=$PWD/target/python cargo build --release --locked --manifest-path bindings/python/Cargo.toml
  rm -rf "$package" && mkdir -p "$package"
  cp -r bindings/python/python/octaplex "$package/octaplex"
  cp target/python/release/lib_octaplex.so "$package/octaplex/_octaplex.abi3.so"
else
  lack "no cargo: the Python package is not built"
fi

# Python's tests run at the same time as Rust's, and their output follows.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [[ -n $package ]]; then
  (
    cd bindings/python
    export PYTHONPATH=$package OCTAPLEX_DEVICE=cuda OCTAPLEX_RUNS=${OCTAPLEX_RUNS:-200}
    "$python" -m pytest -q -rs -p no:cacheprovider tests/test_gpu.py tests/test_transformers_gpu.py tests/test_transformers_random.py tests/test_engine_gpu.py
  ) >"$log" 2>&1 </dev/null &
  other=$!
fi
if [[ -n $binary ]]; then
  export -f run
  export binary
  tests=$("$binary" --list 2>/dev/null | sed -n 's/: test$//p')
  if (($#)); then tests=$(grep -F "$(printf '%s\n' "$@")" <<<"$tests") || fail "no test in Rust has such a name: $*"; fi
  [[ -z $tests ]] || xargs -P "$processes" -I{} bash -c 'run {}' <<<"$tests" || fail "Rust's tests failed"
fi
if (($# == 0)) && command -v cargo >/dev/null; then
  cargo test -p octaplex-cli --features octaplex-cli/models,octaplex-cli/cuda --test tool --test models --locked -- on_a_gpu \
    || fail "the tool's tests failed"
fi
if [[ -n $package ]]; then
  rc=0
  wait "$other" || rc=$?
  cat "$log"
  ((rc == 0 || rc == 5)) || fail "Python's tests failed" # 5: all were skipped, with their reasons
fi
if ((failed)); then exit 1; fi
if ((missing)) && [[ -n ${OCTAPLEX_REQUIRE:-} ]]; then exit 1; fi
