#!/usr/bin/env bash
# Tests octaplex.lmcache in the real LMCache, on the CPU: bindings/python/tests/test_lmcache.py. It tests the serde, two processes
# that share a folder, and two that share a server.
#
# usage: ci/lmcache.sh      needs CPython 3.10 to 3.13 on x86-64, because LMCache has wheels for these only
#
# It builds the wheel of this clone with pip, and installs it with PyTorch and LMCache into an environment of its own. It
# installs Debian's redis-server if neither redis-server nor valkey-server is present. OCTAPLEX_TORCH is what pip installs as
# PyTorch: torch==2.9.1 by default, or the path of a wheel.
#
# It is not part of .ci/run, because PyTorch and its dependencies take gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/python

command -v valkey-server redis-server >/dev/null || ci/install.sh redis-server
[[ -x $target/lmcache/bin/pip ]] || python3 -m venv "$target/lmcache"
install() { "$target/lmcache/bin/pip" install --quiet --disable-pip-version-check "$@"; }
# LMCache also depends on cupy, transformers and clients of cloud stores. The tests import none of them.
install --no-deps lmcache==0.5.6
install "${OCTAPLEX_TORCH:-torch==2.9.1}" 'numpy<=2.2.6' --constraint ci/requirements.txt pytest 'setuptools<81' aiofile aiofiles aiohttp blake3 cachetools fastapi httpx msgspec \
  cryptography numba nvtx 'opentelemetry-api<=1.40.0' 'opentelemetry-sdk<=1.40.0' 'prometheus_client<=0.24.1' psutil py-cpuinfo pyyaml pyzmq redis requests sortedcontainers
CARGO_TARGET_DIR=$PWD/target install --no-deps --force-reinstall ./bindings/python
cd bindings/python
"$target/lmcache/bin/python" -m pytest -q -p no:cacheprovider -rs tests/test_lmcache.py
