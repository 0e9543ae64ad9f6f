"""A debug build of ggml allocates a cache: it stops where a tensor takes less than its rows do in f16.

usage: debug.py     LD_LIBRARY_PATH has ggml's libraries, GGML_BACKEND_PATH names octaplex's
"""

import ctypes
import os

POINTER = ctypes.c_void_p
ggml = ctypes.CDLL("libggml.so", ctypes.RTLD_GLOBAL)
base = ctypes.CDLL("libggml-base.so", ctypes.RTLD_GLOBAL)


class InitParams(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("memory", POINTER), ("no_alloc", ctypes.c_bool)]


def function(library, name, result, *arguments):
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


load = function(ggml, "ggml_backend_load", POINTER, ctypes.c_char_p)
device = function(ggml, "ggml_backend_dev_by_name", POINTER, ctypes.c_char_p)
buffer_type = function(base, "ggml_backend_dev_buffer_type", POINTER, POINTER)
init = function(base, "ggml_init", POINTER, InitParams)
new = function(base, "ggml_new_tensor_3d", POINTER, POINTER, ctypes.c_int, *[ctypes.c_int64] * 3)
name = function(base, "ggml_set_name", POINTER, POINTER, ctypes.c_char_p)
allocate = function(base, "ggml_backend_alloc_ctx_tensors_from_buft", POINTER, POINTER, POINTER)
size = function(base, "ggml_backend_buffer_get_size", ctypes.c_size_t, POINTER)
free = function(base, "ggml_backend_buffer_free", None, POINTER)

assert load(os.environ["GGML_BACKEND_PATH"].encode()), "octaplex was not loaded"
tensors = init(InitParams(1 << 20, None, True))
F16, nominal = 1, 2 * 256 * 4096 * 2
for side in (b"cache_k_l0", b"cache_v_l0"):
    name(new(tensors, F16, 256, 4096, 1), side)
made = allocate(tensors, buffer_type(device(b"OCTAPLEX")))
assert made
print(f"a cache of {nominal} bytes in f16 takes {size(made)}, as ggml has it")
free(made)
