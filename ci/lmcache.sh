#!/usr/bin/env bash
# octaplex.lmcache in the real LMCache, on the CPU: the wheel, as pip builds it from a clone, PyTorch, LMCache and what its import needs in a
# fresh environment, Debian's redis-server where there is neither that nor valkey-server, and tests/test_lmcache.py: the serde, two processes on
# one folder, two on one server. Not part of .ci/run: PyTorch's wheel and what it depends on are gigabytes. LMCache's wheels are for CPython 3.10 to 3.13 on x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/python

command -v valkey-server redis-server >/dev/null || ci/install.sh redis-server
[[ -x $target/lmcache/bin/pip ]] || python3 -m venv "$target/lmcache"
install() { "$target/lmcache/bin/pip" install --quiet --disable-pip-version-check "$@"; }
# LMCache asks for cupy, transformers and clients of clouds as well; what is tested here imports none of them.
install --no-deps lmcache==0.5.6
install "${OCTAPLEX_TORCH:-torch==2.9.1}" 'numpy<=2.2.6' pytest==9.2.0 'setuptools<81' aiofile aiofiles aiohttp blake3 cachetools fastapi httpx msgspec \
  cryptography numba nvtx 'opentelemetry-api<=1.40.0' 'opentelemetry-sdk<=1.40.0' 'prometheus_client<=0.24.1' psutil py-cpuinfo pyyaml pyzmq redis requests sortedcontainers
CARGO_TARGET_DIR=$PWD/target install --no-deps --force-reinstall ./bindings/python
cd bindings/python
"$target/lmcache/bin/python" -m pytest -q -p no:cacheprovider -rs tests/test_lmcache.py
