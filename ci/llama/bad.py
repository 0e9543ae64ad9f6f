"""Faults around a cache: none of them stops the host, and logits stay those of a run in which all goes well.

usage: bad.py MODEL NO_ATTENTION_MODEL

GGML_BACKEND_PATH names the library. Each check prints a line.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading

import numpy as np

import host
from host import ffi, llama

for declaration in (
    "void *ggml_backend_load(const char *path);",
    "void ggml_backend_unload(void *reg);",
    "void *ggml_backend_reg_by_name(const char *name);",
):
    try:
        ffi.cdef(declaration)
    except Exception:  # the wheel's text has it
        pass
path = os.environ["GGML_BACKEND_PATH"].encode()
model = host.load(sys.argv[1])
width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
tokens = [int(token) for token in np.random.default_rng(3).integers(0, 500, 220)]


def context(model):
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 64
    params.n_threads = params.n_threads_batch = 2
    params.flash_attn_type = 1
    made = llama.llama_init_from_model(model, params)
    assert made
    return made


def feed(made, tokens, first=0):
    """The logits of the last token."""
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for number, token in enumerate(tokens):
        batch.token[number], batch.pos[number] = token, first + number
        batch.n_seq_id[number], batch.seq_id[number][0] = 1, 0
        batch.logits[number] = number == len(tokens) - 1
    assert llama.llama_decode(made, batch) == 0
    logits = ffi.buffer(llama.llama_get_logits_ith(made, len(tokens) - 1), width * 4)
    llama.llama_batch_free(batch)
    return np.frombuffer(logits, np.float32).copy()


def run(model):
    made = context(model)
    feed(made, tokens[:200])
    return made, feed(made, tokens[200:], 200)


made, expected = run(model)
assert any("OCTAPLEX KV buffer" in line for _, line in host.lines), "octaplex was not on"

# A disk that is full.
again = context(model)
feed(again, tokens[:200])
numbers = ffi.new("llama_token[]", tokens[:200])
assert not llama.llama_state_save_file(again, b"/dev/full", numbers, 200)
assert llama.llama_state_seq_save_file(again, b"/dev/full", 0, numbers, 200) == 0
assert np.array_equal(feed(again, tokens[200:], 200), expected)
llama.llama_free(again)
print("a full disk: no state is saved, the context goes on")

# A file that ends early is refused, and the context can be used.
with tempfile.TemporaryDirectory() as folder:
    file = folder + "/state"
    source = context(model)
    feed(source, tokens[:200])
    assert llama.llama_state_save_file(source, file.encode(), numbers, 200)
    whole = open(file, "rb").read()
    open(file, "wb").write(whole[: len(whole) * 2 // 3])
    target, room, count = context(model), ffi.new("llama_token[]", 400), ffi.new("size_t *")
    assert not llama.llama_state_load_file(target, file.encode(), room, 400, count)
    llama.llama_memory_clear(llama.llama_get_memory(target), True)
    feed(target, tokens[:200])
    assert np.array_equal(feed(target, tokens[200:], 200), expected)
    llama.llama_free(source)
    llama.llama_free(target)
print("a state that ends early: it is refused, the context goes on")

# Threads from outside, each with a context of its own; then each context in the other's thread.
contexts, found = [context(model), context(model)], {}


def part(number, tokens, first):
    found[number, first] = feed(contexts[number], tokens, first)


for numbers_of_threads, piece, first in [((0, 1), tokens[:200], 0), ((1, 0), tokens[200:], 200)]:
    threads = [threading.Thread(target=part, args=(number, piece, first)) for number in numbers_of_threads]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert all(np.array_equal(found[number, 200], expected) for number in range(2))
[llama.llama_free(each) for each in contexts]
print("threads from outside: the same logits")

# Off the device.
params = llama.llama_model_default_params()
params.n_gpu_layers = 99
devices = ffi.new("void *[]", [ffi.NULL])
params.devices = ffi.cast(ffi.typeof(params.devices), devices)
plain = llama.llama_model_load_from_file(sys.argv[1].encode(), params)
seen = len(host.lines)
off, logits = run(plain)
assert not any("OCTAPLEX KV buffer" in line for _, line in host.lines[seen:])
assert np.abs(logits - expected).max() < 2
llama.llama_free(off)
print("no device: llama.cpp's own cache")

# A model without attention: its states are on plain memory.
other = llama.llama_model_load_from_file(sys.argv[2].encode(), llama.llama_model_default_params())
own, before = run(other)
llama.llama_free(own)
llama.llama_model_free(other)
params = llama.llama_model_default_params()
params.devices = ffi.cast(ffi.typeof(params.devices), devices)
other = llama.llama_model_load_from_file(sys.argv[2].encode(), params)
own, logits = run(other)
assert np.abs(logits - before).max() < 1e-4, np.abs(logits - before).max()
llama.llama_free(own)
print("a model without attention: the same logits")

# Unloaded and loaded again.
llama.llama_free(made)
for each in (model, plain, other):
    llama.llama_model_free(each)
for _ in range(3):
    registry = llama.ggml_backend_reg_by_name(b"OCTAPLEX")
    assert registry
    llama.ggml_backend_unload(registry)
    assert not llama.ggml_backend_reg_by_name(b"OCTAPLEX")
    assert llama.ggml_backend_load(path)
params = llama.llama_model_default_params()
params.n_gpu_layers = 99
model = llama.llama_model_load_from_file(sys.argv[1].encode(), params)
seen = len(host.lines)
made, logits = run(model)
assert any("OCTAPLEX KV buffer" in line for _, line in host.lines[seen:])
assert np.array_equal(logits, expected)
print("unloaded and loaded again: the same logits")

# Hosts that say no version, lack a function, or have a function between the known ones: no device, and a sentence.
names = re.findall(r"^    (ggml_\w+): fn", open("bindings/ggml/src/functions.rs").read(), re.M)
names.remove("ggml_backend_cpu_buffer_type")
stubs = "".join(f"void *{name}(void) {{ return 0; }}\n" for name in names)
with tempfile.TemporaryDirectory() as folder:
    code = """#include <dlfcn.h>
        const char *ggml_version(void) { return "0.99.0"; }
        void *load(const char *path) {
            void *(*init)(void) = (void *(*)(void))dlsym(dlopen(path, RTLD_NOW), "ggml_backend_init");
            void *made = init();
            return made;
        }
        """
    table = "void *ggml_backend_cpu_buffer_type(void) { static void *t[16] = { load, load, load, load, 0, load, load }; return t; }"

    def built(name, text):
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", f"{folder}/{name}.so", "-ldl"]
        subprocess.run(command, input=text, text=True, check=True)
        return f"import ctypes; x = ctypes.CDLL('{folder}/{name}.so').load; x.restype = ctypes.c_void_p; assert not x({path!r})"

    lacks, unknown = built("lacks", code), built("unknown", code + stubs + table)
    none = f"import ctypes; x = ctypes.CDLL({path.decode()!r}).ggml_backend_init; x.restype = ctypes.c_void_p; assert not x()"
    for program, words in [(unknown, "ggml 0.99.0 is not supported, because its layout differs in its buffer types"), (lacks, "ggml 0.99.0: the host has no function"), (none, "no function ggml_version")]:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0 and words in done.stderr, done
print("another layout of ggml: no device, and a sentence")
assert not any(level == host.ERROR and "octaplex" in line for level, line in host.lines)
sys.stdout.flush()
os._exit(0)  # some wheels crash when they are unloaded
