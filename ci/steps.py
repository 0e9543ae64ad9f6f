#!/usr/bin/env python3
"""Chooses the steps of .ci/run that a change can touch. A step is a script of ci/ and its arguments.

    ci/steps.py            prints the steps for the change, each behind its lane
    ci/steps.py all        prints all steps
    ci/steps.py of PATH... prints the steps for a change of these files
    ci/steps.py check      tests the table below

The change is what differs from the merge base with OCTAPLEX_BASE, or with origin/main if this branch has commits that
origin/main lacks. Files that are not committed belong to it. All steps run if no base is known, if nothing differs, and for a
file that no row names."""
import os
import re
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Two lanes run side by side. `here` uses this machine and its compiler, `elsewhere` other machines, compilers and programs.
# Steps of a lane share what they build.
LANES = {
    "here": ("format", "lints", "suite", "readme", "tests", "hip-on-cpu", "c", "python", "instructions", "instances", "package"),
    "elsewhere": ("fuzz 6", "memory", "cross arm64", "cross s390x", "cross wasm", "cross thumb", "cross no_cas", "cross lints",
                  "wasm", "sizes", "panics", "llama", "llama-gpu"),
}
ALL = [step for steps in LANES.values() for step in steps]

# Groups of steps. Each row of the table also has `format`, and `suite pages`: these tests read pages and sources.
X86 = "lints, suite, instructions, instances, fuzz 6 backends"
WASM = "cross wasm, cross lints, wasm"
ARM = "cross arm64, cross lints"
GPU = "lints, tests, hip-on-cpu, python, llama-gpu"

# The first row that matches a path decides. `*` also matches `/`.
TABLE = (
    ("*Cargo.toml *Cargo.lock", "all"),
    ("*LICENSE-*", "package, python, wasm"),
    # Documents. Those with commands run them.
    ("docs/engine.md", "readme, c"),
    ("README.md docs/models.md docs/codecs.md docs/choosing.md cli/README.md metrics/README.md", "readme"),
    ("docs/platforms.md", "readme, sizes"),
    ("docs/start.md", "readme, wasm, llama"),
    ("docs/plots/sample.txt", "suite octaplex-cli, wasm"),
    ("docs/plots/*", "suite octaplex-cli"),
    ("docs/* CHANGELOG.md CONTRIBUTING.md SECURITY.md book.toml deny.toml", ""),
    ("arch/README.md arch/device/README.md files/README.md bindings/ggml/README.md fuzz/oss-fuzz/*", ""),
    ("bindings/candle/README.md", "readme, tests"),
    # Kernels for one instruction set. Other kernels are in the row of all steps: every machine runs them.
    ("arch/*/avx2* arch/*/avx512* arch/registers/amx.rs", X86),
    ("arch/*/neon.rs", ARM),
    ("arch/*/simd128.rs", WASM),
    ("arch/*/wide* arch/registers.rs", f"{X86}, {ARM}, {WASM}"),
    ("arch/device/* src/gpu* tests/gpu*", GPU),
    ("arch/tests/*", f"lints, suite, {ARM}, {WASM}"),
    # The library: s390x for the order of bytes, Miri, sizes, panics, and everything that is built on it.
    ("arch/*.rs src/*", "all"),
    # One binding, the tool, or a crate. s390x has ARM's unsigned `char` and the other order of bytes: it tests the C interface
    # for both.
    ("bindings/c/*", "lints, suite octaplex-c, c, cross s390x, fuzz 6 c_api"),
    ("bindings/candle/*", "lints, tests"),
    ("bindings/ggml/*", "lints, suite octaplex-ggml, llama, llama-gpu"),
    ("bindings/python/*", "python"),
    ("bindings/wasm/*", "wasm"),
    ("cli/src/models* cli/examples/*", "lints, suite octaplex-cli, readme, tests, c"),
    ("cli/data/*", "lints, suite octaplex-cli, readme, wasm"),
    ("cli/*", "lints, suite octaplex-cli, readme, tests, fuzz 6 npy safetensors"),
    ("metrics/*", "lints, suite octaplex-metrics octaplex-cli, readme, tests"),
    ("files/*", "lints, suite octaplex-files octaplex-cli, tests, python, fuzz 6"),
    ("profiles/*", "suite, readme, tests, wasm"),
    # Tests, examples and benchmarks.
    ("fuzz/* tests/fuzz_bodies/* tests/model.rs", "lints, suite, c, fuzz 6"),
    ("tests/specification/*", ""),
    ("tests/snapshots/*", "suite, python, wasm"),
    ("tests/golden/*", "suite, package, python"),
    ("tests/trellis/* tests/common/*", "lints, suite, tests, package, memory, cross wasm"),
    ("tests/*", "lints, suite, tests, package, memory"),
    ("examples/no_alloc/* examples/firmware/*", "cross thumb"),
    ("examples/*.rs", "lints, suite, readme"),
    ("examples/llama/* benches/mca/* benches/peers/* benches/*.py", ""),
    ("benches/instructions.rs", "lints, instructions"),
    ("benches/*", "lints, cross wasm"),
    # Files that no step runs. `format` reads some of them.
    ("ci/release* ci/systems.sh .github/* ruff.toml .shellcheckrc", ""),
    ("ci/requirements.txt", "python"),
    # Scripts. One of a step runs the step: see `steps_of`. These run by hand.
    (" ".join(f"ci/{name}" for name in (
        "book.py dependencies.sh docs.py figures.py gpu.sh hip.sh lmcache.sh models.sh newest.sh soak.sh tables.py texts.sh transformers.sh"
    ).split()), ""),
    ("ci/llama/* ci/hip-on-cpu/*", "llama-gpu"),
    ("ci/features.sh", "lints"),
    ("ci/ggml.sh", "c"),
    ("ci/needed.sh", "c, cross thumb"),
    ("ci/portable/*", "cross wasm"),
)


def steps_of(path):
    """The steps for one file: of the table, or of the script that it belongs to."""
    script = re.match(r"ci/([\w-]+)[./]", path)
    own = [step for step in ALL if script and step.split()[0] == script[1]]
    row = next((steps for patterns, steps in TABLE if any(fnmatchcase(path, one) for one in patterns.split())), None)
    if row is None and not own or row == "all":
        return ALL
    return ["format", "suite pages", *own, *(row.split(", ") if row else [])]


def chosen(paths):
    """The steps for a change, as (lane, step): in the order of the lanes, and none that another one contains."""
    wanted = {step for path in paths for step in steps_of(path)}
    for lane, steps in LANES.items():
        for step in steps:
            if step in wanted:
                yield lane, step
                continue
            # `suite octaplex-c` is a part of `suite`; all parts of a step are one, with the arguments of each.
            parts = sorted(part for part in wanted if part.startswith(f"{step} "))
            if step == "suite" and "suite pages" in parts:
                parts.remove("suite pages")
                yield lane, "suite pages"
            if parts:
                yield lane, " ".join([step, *dict.fromkeys(word for part in parts for word in part[len(step) :].split())])


def git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def change(root, named):
    """The changed files and their base, or None and why they are not known."""
    base = git(root, "merge-base", named or "origin/main", "HEAD")
    if not base:
        return None, f"no base is known: {named or 'origin/main'} is no ancestor here"
    if not named and base == git(root, "rev-parse", "HEAD"):
        return None, "no base is known: origin/main has this commit"
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", base)
    others = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    paths = [path for path in f"{differing}\0{others}".split("\0") if path]
    if not paths or differing is None or others is None:
        return None, f"nothing differs from {base[:8]}"
    return paths, f"changed since {base[:8]}"


def check_change():
    """Tests `change` on a clean checkout, a branch, a clone of one commit, and files that are not committed."""
    with tempfile.TemporaryDirectory() as folder:
        origin, clone, shallow = (f"{folder}/{name}" for name in ("origin", "clone", "shallow"))
        commit = ("-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--allow-empty", "--message=a")
        git(folder, "init", "--quiet", "--initial-branch=main", origin)
        for _ in range(2):
            git(origin, *commit)
        git(folder, "clone", "--quiet", origin, clone)
        git(folder, "clone", "--quiet", "--depth=1", f"file://{origin}", shallow)
        for root, named in ((origin, ""), (clone, ""), (shallow, ""), (shallow, "HEAD~1"), (clone, "nowhere"), (clone, "HEAD~1")):
            assert change(root, named)[0] is None, f"{root} {named}: {change(root, named)}"
        Path(clone, "kept").touch()
        git(clone, "add", "kept")
        git(clone, *commit)
        Path(clone, "new").touch()
        assert change(clone, "")[0] == ["kept", "new"] and change(clone, "HEAD")[0] == ["new"]
        assert change(origin, "HEAD~1")[0] is None and change(shallow, "HEAD")[0] is None


def check():
    """Fails if a row or a step has no use, or if a change would not run what it can break."""
    tracked = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
    used = {step for _, steps in TABLE for step in steps.split(", ")}
    for patterns, _ in TABLE:
        for pattern in patterns.split():
            assert any(fnmatchcase(path, pattern) for path in tracked), f"no file is named {pattern}"
    for step in used.union(ALL) - {"", "all"}:
        assert (ROOT / f"ci/{step.split()[0]}.sh").exists(), f"no script for the step {step}"
        assert any(step == whole or step.startswith(f"{whole} ") for whole in ALL), f"{step} is in no lane"
    every = ", ".join(ALL)
    x86 = "format, lints, suite, instructions, instances, fuzz 6 backends"
    for paths, expected in (
        ("docs/notes/speed.md CHANGELOG.md", "format, suite pages"),
        ("README.md", "format, suite pages, readme"),
        ("bindings/python/src/cache.rs", "format, suite pages, python"),
        ("bindings/c/src/cache.rs", "format, lints, suite pages, suite octaplex-c, c, fuzz 6 c_api, cross s390x"),
        ("bindings/c/src/cache.rs bindings/ggml/src/ops.rs",
         "format, lints, suite pages, suite octaplex-c octaplex-ggml, c, fuzz 6 c_api, cross s390x, llama, llama-gpu"),
        ("arch/codes/avx512/score.rs arch/trellis/avx2.rs", x86),
        ("arch/codes/avx512/score.rs bindings/c/src/cache.rs",
         "format, lints, suite, c, instructions, instances, fuzz 6 backends c_api, cross s390x"),
        ("arch/registers/neon.rs", "format, suite pages, cross arm64, cross lints"),
        ("arch/device/kernels/attend.cuh", "format, lints, suite pages, tests, hip-on-cpu, python, llama-gpu"),
        ("ci/llama/standin.c", "format, suite pages, llama, llama-gpu"),
        ("tests/golden/trellis.hex", "format, suite, python, package"),
        ("tests/cache.rs", "format, lints, suite, tests, package, memory"),
        ("examples/firmware/src/main.rs", "format, suite pages, cross thumb"),
        ("ci/cross.sh", "format, suite pages, cross arm64, cross s390x, cross wasm, cross thumb, cross no_cas, cross lints"),
        ("ci/panics.txt", "format, suite pages, panics"),
        ("ci/systems.sh", "format, suite pages"),
        # Files that every machine runs or all packages share, and one that no row names.
        ("arch/codes/scalar.rs", every),
        ("src/page/lean.rs docs/formats.md", every),
        ("cli/Cargo.toml", every),
        ("Cargo.lock", every),
        ("ci/printed.sh", every),
        (".ci/run", every),
        ("new/thing.rs", every),
    ):
        found = ", ".join(step for _, step in chosen(paths.split()))
        assert found == expected, f"{paths}:\n  {found}, not\n  {expected}"
    print(f"The steps of {len(tracked)} files are in order")


def main():
    if sys.argv[1:] == ["check"]:
        check_change()
        return check()
    if sys.argv[1:2] == ["of"]:
        paths, why = sys.argv[2:], "given"
    elif sys.argv[1:] == ["all"]:
        paths, why = None, "asked for"
    else:
        paths, why = change(ROOT, os.environ.get("OCTAPLEX_BASE"))
    steps = list(chosen(paths)) if paths is not None else [(lane, step) for lane in LANES for step in LANES[lane]]
    names = "all files" if paths is None else f"{len(paths)} files"
    print(f"{len(steps)} steps for {names} ({why})", file=sys.stderr)
    for lane, step in steps:
        print(lane, step)


if __name__ == "__main__":
    main()
