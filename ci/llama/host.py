"""A prebuilt llama.cpp (the wheel xllamacpp) as a C library: `llama`, `ffi`, and the lines of its log.

The declarations of llama.cpp's C interface are the text that the wheel llama-cpp-py-sync carries; the functions are those
that xllamacpp's library exports. `LLAMA_LIBRARY` names another library of the same interface.
"""

import gc
import glob
import importlib.util
import os
import re
import sys

import cffi

gc.disable()  # cffi's objects outlive the library's
ERROR = 4


def folder(package):
    return os.path.dirname(importlib.util.find_spec(package).origin)


declarations = open(folder("llama_cpp_py_sync") + "/_cffi_bindings.py").read()
ffi = cffi.FFI()
ffi.cdef(re.search(r'_LLAMA_H_CDEF = """(.*?)"""', declarations, re.S).group(1))
for declaration in ("void ggml_backend_load_all(void);", "void *ggml_backend_load(const char *path);"):
    try:
        ffi.cdef(declaration)
    except cffi.CDefError:
        pass
library = os.environ.get("LLAMA_LIBRARY") or glob.glob(folder("xllamacpp") + "/*.so")[0]
llama = ffi.dlopen(library, ffi.RTLD_NOW | ffi.RTLD_LOCAL)
lines = []


@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def log(level, text, _):
    text = ffi.string(text).decode("utf-8", "replace")
    if level == ERROR or any(word in text for word in ("octaplex", "KV buffer", "splits", "OCTAPLEX")):
        sys.stderr.write(text)
        lines.append((level, text.strip()))


def load(path, layers=99):
    """The model, once octaplex is loaded where the environment says so."""
    llama.llama_log_set(log, ffi.NULL)
    llama.llama_backend_init()
    if "FIRST_BACKEND" in os.environ:  # a library to load before octaplex
        assert llama.ggml_backend_load(os.environ["FIRST_BACKEND"].encode())
    llama.ggml_backend_load_all()  # reads GGML_BACKEND_PATH
    params = llama.llama_model_default_params()
    params.n_gpu_layers = layers
    model = llama.llama_model_load_from_file(path.encode(), params)
    assert model, "the model could not be loaded"
    return model
