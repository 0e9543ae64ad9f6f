#!/usr/bin/env bash
# Tests the Python package: the commands of its README, which build and install it in a fresh environment, a source distribution,
# the tests, an example, and the types with mypy.
#
# usage: ci/python.sh
#
# Tests that need PyTorch, which is large, run only if OCTAPLEX_TORCH says what pip installs for it: torch==2.9.1, or the path of
# a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/target/python
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv # a separate package in Debian

say "lints"
cargo fmt --manifest-path bindings/python/Cargo.toml --check
export CARGO_TARGET_DIR=$PWD/target # shared with other scripts, which build the same library in the same profile
cargo clippy --manifest-path bindings/python/Cargo.toml --locked --quiet -- -D warnings
say "the README's lines"
rm -rf target/venv
# The library is built once more here, because the features of its dependencies differ from those of the workspace. With less
# optimisation that takes half the time.
CARGO_PROFILE_RELEASE_OPT_LEVEL=1 PIP_DISABLE_PIP_VERSION_CHECK=1 ci/printed.sh bindings/python/README.md
say "a source distribution, whose parts find one another"
python3 -m venv --clear "$target/build"
"$target/build/bin/pip" install --quiet --disable-pip-version-check --constraint ci/requirements.txt maturin
rm -rf "$target/sdist"
"$target/build/bin/maturin" sdist --manifest-path bindings/python/Cargo.toml --out "$target/sdist"
tar -xzf "$target"/sdist/octaplex-*.tar.gz -C "$target/sdist" --strip-components=1
cargo metadata --quiet --locked --format-version 1 --manifest-path "$target/sdist/bindings/python/Cargo.toml" >/dev/null
for licence in MIT APACHE numpy; do [[ -s $target/sdist/licenses/LICENSE-$licence ]]; done
say "tests"
target/venv/bin/pip install --quiet --disable-pip-version-check --constraint ci/requirements.txt pytest ml_dtypes mypy ${OCTAPLEX_TORCH:+"$OCTAPLEX_TORCH"}
say "the example"
(
  mkdir -p "$target/example"
  cd "$target/example"
  ../../venv/bin/python - <<'PYTHON'
import numpy as np
random = np.random.default_rng(1)
for name, shape in (("keys", (2, 1000, 64)), ("values", (2, 1000, 64)), ("queries", (8, 64))):
    np.save(f"{name}.npy", random.standard_normal(shape))
PYTHON
  ../../venv/bin/python ../../../bindings/python/examples/measure.py keys.npy values.npy queries.npy | tee rows
  # More bits, less error.
  awk 'NR > 1 { if ($2 >= last && NR > 2) exit 1; last = $2; rows++ } END { exit rows != 5 }' rows
)
cd bindings/python
../../target/venv/bin/python -m pytest -q -rs -p no:cacheprovider tests
../../target/venv/bin/mypy --cache-dir "$target/mypy" --strict python/octaplex
