#!/usr/bin/env python3
"""Checks that stand_in.cpp finds the faults that it says it finds: bites.py LIBRARY. A process each, as a GPU that is lost stays so."""
import ctypes
import os
import sys

WORDS = open(os.path.join(os.path.dirname(__file__), "../../arch/device/kernels/hip.cuh")).read()
TEXT = "namespace octaplex {\n" + WORDS + """
struct Given {
    int *at;
    int count, wrong;
};
extern "C" __global__ void __launch_bounds__(64) work(const __grid_constant__ Given g) {
    __shared__ int shared[64];
    extern __shared__ int more[];
    const int i = threadIdx.x;
    if (g.wrong == 1) g.at[g.count + 4] = 1;
    if (g.wrong == 2 && i == 0) __syncwarp();
    if (g.wrong == 3) g.at[i] = shared[i];
    if (g.wrong == 4) g.at[i] = more[i];
    if (g.wrong == 5 && i > 0) *reinterpret_cast<int4_ *>(g.at + i % 2) = int4_{};
    shared[i] = __shfl_xor_sync(~0u, i, 1);
    __syncthreads();
    if (g.wrong == 0) g.at[i] = shared[63 - i];
}
}
""".replace("struct Given", "struct alignas(16) int4_ { int x[4]; };\nstruct Given", 1)


class Given(ctypes.Structure):
    _fields_ = [("at", ctypes.c_uint64), ("count", ctypes.c_int), ("wrong", ctypes.c_int)]


def run(wrong, threads=64, shared=256):
    """Returns the result of a launch, and the 64 numbers that it leaves."""
    hip = ctypes.CDLL(sys.argv[1])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert hip.hiprtcCreateProgram(ctypes.byref(program), TEXT.encode(), b"", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"-std=c++17")
    if hip.hiprtcCompileProgram(program, 1, options):
        log = ctypes.create_string_buffer(1 << 20)
        hip.hiprtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    hip.hiprtcGetCodeSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    hip.hiprtcGetCode(program, code)
    module, function, at, own = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    assert hip.hipModuleLoadData(ctypes.byref(module), code) == 0
    assert hip.hipModuleGetFunction(ctypes.byref(function), module, b"work") == 0
    assert hip.hipFuncGetAttribute(ctypes.byref(own), 1, function) == 0 and own.value == 256, own
    assert hip.hipMalloc(ctypes.byref(at), 256) == 0
    given = Given(at.value, 64, wrong)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(given))
    said = hip.hipModuleLaunchKernel(function, 1, 1, 1, threads, 1, 1, shared, None, parameters, None)
    numbers = (ctypes.c_int * 64)()
    read = hip.hipMemcpyDtoH(numbers, at, 256)
    assert hip.hipMemcpyDtoH(numbers, at, 257) != 0, "more than there is"
    return said, read, list(numbers)


CASES = {
    "right": lambda: run(0) == (0, 0, [63 - i ^ 1 for i in range(64)]),
    "beyond its memory": lambda: run(1)[:2] == (700, 700),
    "a wait in vain": lambda: run(2)[:2] == (719, 719),
    "shared memory before it is written": lambda: run(3) == (0, 0, [-1] * 64),
    "the same of a launch": lambda: run(4) == (0, 0, [-1] * 64),
    "too many threads": lambda: run(0, threads=96)[:2] == (9, 0),
    "too much shared memory": lambda: run(0, shared=232448)[:2] == (1, 0),
}

MORE = {
    "a lost GPU": ("OCTAPLEX_STAND_IN_LOST", "1", lambda: run(0)[:2] == (719, 719)),
    "less shared memory": ("OCTAPLEX_STAND_IN_SHARED", "511", lambda: run(0)[:2] == (1, 0)),
    "not aligned": ("OCTAPLEX_STAND_IN_OPTIONS", "-fsanitize=alignment -fsanitize-undefined-trap-on-error", lambda: run(5)[0] == 700),
}
cases = [(name, {}, bites) for name, bites in CASES.items()] + [(name, {key: value}, bites) for name, (key, value, bites) in MORE.items()]
for name, environment, bites in cases:
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        if name != "right":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os._exit(0 if bites() else 1)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"stand-in: {name}: not as it says")
print(f"stand-in: {len(cases)} cases as it says")
