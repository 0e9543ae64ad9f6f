# The common parts of ci/llama.sh and ci/llama-gpu.sh: a prebuilt llama.cpp in $target/python, and functions. Sourced, with $target set.
mkdir -p "${target:?the caller sets it}"
python3 -c 'import ensurepip' 2>/dev/null || ci/install.sh python3-venv
[[ -x $target/python/bin/python ]] || python3 -m venv "$target/python"
python=$target/python/bin/python
# llama-cpp-py-sync has the declarations, and the newest ggml. gguf writes the small models.
"$python" -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp==2026.10.11549 llama-cpp-py-sync==0.11739
"$python" -m pip install --quiet --disable-pip-version-check numpy cffi gguf

export GGML_NO_BACKTRACE=1 # a failed assertion needs no debugger
export OMP_WAIT_POLICY=passive # threads that spin take the cores of other tests
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }
logits() { # logits MODEL TEXT OUT ARGUMENT...: computes logits, and prints results as a line of JSON
  timeout "${limit:-600}" "$python" ci/llama/logits.py "$@" 2>"$target/log" || { cat "$target/log" >&2; return 1; }
}
below() { # below KEY LIMIT JSON: fails if a number of the JSON is above the limit
  "$python" -c 'import json, sys
key, limit, text = sys.argv[1:]
found = [json.loads(line).get(key) for line in text.splitlines() if line.startswith("{")]
value = next(value for value in found if value is not None)
print(f"   {key} {value:.3g} (at most {limit})")
sys.exit(value > float(limit))' "$@"
}
