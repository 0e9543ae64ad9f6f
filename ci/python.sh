#!/usr/bin/env bash
# The Python package: the wheel, as pip builds it from a clone, with maturin; in a fresh environment its tests, with the README's lines, and its types by
# mypy. Tests on PyTorch run where `OCTAPLEX_TORCH` names what pip is to install for it (torch==2.9.1, or a wheel's path):
# it is large.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/python
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv # Debian has it apart
environment() { # environment NAME PACKAGES…: a fresh one
  python3 -m venv --clear "$target/$1"
  "$target/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

say "lints"
cargo fmt --manifest-path bindings/python/Cargo.toml --check
export CARGO_TARGET_DIR=$PWD/target # shared: the same library in the same profile
cargo clippy --manifest-path bindings/python/Cargo.toml --locked --quiet -- -D warnings
say "the wheel"
environment build maturin==1.16.0
rm -rf "$target/wheels"
# Its packages have other features than the workspace's, so that the library is built once more: less optimised, in half the time.
CARGO_PROFILE_RELEASE_OPT_LEVEL=1 PATH=$target/build/bin:$PATH "$target/build/bin/pip" wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$target/wheels" ./bindings/python
say "tests"
environment test "$target"/wheels/*.whl pytest==9.2.0 ml_dtypes==0.6.0 mypy==2.4.1 ${OCTAPLEX_TORCH:+"$OCTAPLEX_TORCH"}
cd bindings/python
"$target/test/bin/python" -m pytest -q -rs -p no:cacheprovider tests
"$target/test/bin/mypy" --cache-dir "$target/mypy" --strict python/octaplex
