// HIP's library and hipRTC's, as much of them as octaplex calls, by CUDA's driver and NVRTC: so that the host's side of the feature `hip`
// runs where there is an NVIDIA card and none of AMD's. What it proves is that side alone: the kernels are the portable text, compiled by
// NVRTC for the card, with warps of 32 lanes. Nothing is linked: libcuda.so.1 and libnvrtc.so are looked for at run time.
//   gcc -std=gnu11 -O1 -shared -fPIC -Wl,-soname,libamdhip64.so stand_in.c -o ROCM/lib/libamdhip64.so -ldl, the same as ROCM/lib/libhiprtc.so, and ROCM_PATH=ROCM
//   OCTAPLEX_STAND_IN_SHARED=65536    bytes of shared memory that the card says a block of threads has, as AMD's cards have them
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef unsigned long long address;
typedef unsigned char byte;

static void *library(const char *const *names) {
    void *found = NULL;
    for (; *names && !found; names++) found = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return found;
}
static void *cuda(const char *name) {
    static void *found;
    static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL};
    if (!found) found = library(names);
    void *call = found ? dlsym(found, name) : NULL;
    if (!call) fprintf(stderr, "stand-in: no %s\n", name), abort();
    return call;
}
static void *nvrtc(const char *name) {
    static void *found;
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};
    if (!found) found = library(names);
    void *call = found ? dlsym(found, name) : NULL;
    if (!call) fprintf(stderr, "stand-in: no %s\n", name), abort();
    return call;
}
// A call of CUDA's, of words: numbers of 32 bits and pointers both are passed as such.
#define CUDA(name, ...) (((int (*)())cuda(name))(__VA_ARGS__))
#define NVRTC(name, ...) (((int (*)())nvrtc(name))(__VA_ARGS__))

// Errors have the same numbers, those that octaplex looks at: 2 memory, 100 no device.
int hipInit(unsigned flags) { return CUDA("cuInit", flags); }
int hipGetLastError(void) { return 0; }
const char *hipGetErrorName(int error) {
    const char *name = NULL;
    CUDA("cuGetErrorName", error, &name);
    return name;
}
int hipGetDeviceCount(int *count) { return CUDA("cuDeviceGetCount", count); }

static int attribute(int which, int device) {
    int value = 0;
    CUDA("cuDeviceGetAttribute", &value, which, device);
    return value;
}
static int shared_memory(int device) {
    const char *said = getenv("OCTAPLEX_STAND_IN_SHARED");
    return said ? atoi(said) : attribute(97, device); // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
}
static int architecture(int device) { return 10 * attribute(75, device) + attribute(76, device); }

int hipGetDevicePropertiesR0600(byte *properties, int device) {
    memset(properties, 0, 1472);
    const int refused = CUDA("cuDeviceGetName", properties, 256, device);
    const size_t shared = shared_memory(device);
    const int warp = 32, multiprocessors = attribute(16, device);
    memcpy(properties + 296, &shared, sizeof shared);
    memcpy(properties + 308, &warp, sizeof warp);
    memcpy(properties + 388, &multiprocessors, sizeof multiprocessors);
    // A name that no card of AMD's has, so that images of theirs and these are never taken for each other.
    snprintf((char *)properties + 1160, 256, "gfx900:stand-in-for-sm_%d", architecture(device));
    return refused;
}
int hipSetDevice(int device) {
    static handle contexts[64];
    if (device < 0 || device >= 64) return 101;
    handle context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
    if (!context) { // retained once more if two threads come at once, which does nobody harm
        const int refused = CUDA("cuDevicePrimaryCtxRetain", &context, device);
        if (refused) return refused;
        __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
    }
    return CUDA("cuCtxSetCurrent", context);
}
int hipDeviceSynchronize(void) { return CUDA("cuCtxSynchronize"); }

int hipStreamCreateWithFlags(handle *stream, unsigned flags) { return CUDA("cuStreamCreate", stream, flags); }
int hipStreamDestroy(handle stream) { return CUDA("cuStreamDestroy_v2", stream); }
int hipStreamSynchronize(handle stream) { return CUDA("cuStreamSynchronize", stream); }
int hipStreamWaitEvent(handle stream, handle event, unsigned flags) { return CUDA("cuStreamWaitEvent", stream, event, flags); }
int hipStreamBeginCapture(handle stream, int mode) { return CUDA("cuStreamBeginCapture_v2", stream, mode); }
int hipStreamEndCapture(handle stream, handle *graph) { return CUDA("cuStreamEndCapture", stream, graph); }
int hipStreamIsCapturing(handle stream, int *status) { return CUDA("cuStreamIsCapturing", stream, status); }
int hipLaunchHostFunc(handle stream, void (*call)(void *), void *data) { return CUDA("cuLaunchHostFunc", stream, call, data); }

int hipModuleLoadData(handle *module, const void *image) { return CUDA("cuModuleLoadData", module, image); }
int hipModuleUnload(handle module) { return CUDA("cuModuleUnload", module); }
int hipFuncGetAttribute(int *value, int which, handle function) { return CUDA("cuFuncGetAttribute", value, which, function); }
// AMD's cards give a kernel all that they have without being asked before.
int hipModuleGetFunction(handle *function, handle module, const char *name) {
    int refused = CUDA("cuModuleGetFunction", function, module, name), device = 0, own = 0;
    if (!refused) refused = CUDA("cuCtxGetDevice", &device);
    if (!refused) refused = CUDA("cuFuncGetAttribute", &own, 1, *function); // SHARED_SIZE_BYTES
    if (!refused) refused = CUDA("cuFuncSetAttribute", *function, 8, attribute(97, device) - own); // MAX_DYNAMIC_SHARED_SIZE_BYTES
    return refused;
}
int hipModuleLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          handle stream, void **parameters, void **extra) {
    int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **) = cuda("cuLaunchKernel");
    return launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

int hipMalloc(address *at, size_t bytes) { return CUDA("cuMemAlloc_v2", at, bytes); }
int hipFree(address at) { return CUDA("cuMemFree_v2", at); }
int hipMemsetAsync(address at, int value, size_t bytes, handle stream) { return CUDA("cuMemsetD8Async", at, value, bytes, stream); }
int hipMemsetD8(address at, byte value, size_t bytes) { return CUDA("cuMemsetD8_v2", at, value, bytes); }
int hipMemsetD8Async(address at, byte value, size_t bytes, handle stream) { return CUDA("cuMemsetD8Async", at, value, bytes, stream); }
int hipMemcpyHtoD(address to, void *from, size_t bytes) { return CUDA("cuMemcpyHtoD_v2", to, from, bytes); }
int hipMemcpyDtoH(void *to, address from, size_t bytes) { return CUDA("cuMemcpyDtoH_v2", to, from, bytes); }
int hipMemcpyDtoDAsync(address to, address from, size_t bytes, handle stream) {
    return CUDA("cuMemcpyDtoDAsync_v2", to, from, bytes, stream);
}
int hipMemcpyAsync(address to, address from, size_t bytes, int kind, handle stream) {
    switch (kind) {
    case 1: return CUDA("cuMemcpyHtoDAsync_v2", to, from, bytes, stream);
    case 2: return CUDA("cuMemcpyDtoHAsync_v2", to, from, bytes, stream);
    case 3: return CUDA("cuMemcpyDtoDAsync_v2", to, from, bytes, stream);
    default: return 21; // hipErrorInvalidMemcpyDirection
    }
}

int hipEventCreateWithFlags(handle *event, unsigned flags) { return CUDA("cuEventCreate", event, flags); }
int hipEventDestroy(handle event) { return CUDA("cuEventDestroy_v2", event); }
int hipEventRecord(handle event, handle stream) { return CUDA("cuEventRecord", event, stream); }
int hipEventSynchronize(handle event) { return CUDA("cuEventSynchronize", event); }
int hipEventElapsedTime(float *milliseconds, handle start, handle end) { return CUDA("cuEventElapsedTime", milliseconds, start, end); }

int hipGraphInstantiateWithFlags(handle *executable, handle graph, address flags) {
    return CUDA("cuGraphInstantiateWithFlags", executable, graph, flags);
}
int hipGraphDestroy(handle graph) { return CUDA("cuGraphDestroy", graph); }
int hipGraphExecDestroy(handle executable) { return CUDA("cuGraphExecDestroy", executable); }
int hipGraphLaunch(handle executable, handle stream) { return CUDA("cuGraphLaunch", executable, stream); }

// The same text, without what is between hip.cuh's `#ifdef __HIP__`; AMD's options by NVIDIA's.
int hiprtcCreateProgram(handle *program, const char *text, const char *name, int count, const char *const *headers, const char *const *names) {
    return NVRTC("nvrtcCreateProgram", program, text, name, count, headers, names);
}
int hiprtcCompileProgram(handle program, int count, const char *const *options) {
    const char **mine = malloc((count + 2) * sizeof *mine);
    char architecture[32] = "";
    int kept = 0;
    mine[kept++] = "-default-device";
    for (int i = 0; i < count; i++) {
        const char *target = strstr(options[i], "stand-in-for-");
        if (!strncmp(options[i], "--offload-arch=", 15) && target) {
            snprintf(architecture, sizeof architecture, "--gpu-architecture=%.10s", target + 13);
            mine[kept++] = architecture;
        } else if (!strcmp(options[i], "-ffp-contract=off")) {
            mine[kept++] = "--fmad=false";
        } else if (!strcmp(options[i], "-std=c++17")) {
            mine[kept++] = "--std=c++17";
        } else if (!strncmp(options[i], "-D", 2)) {
            mine[kept++] = options[i];
        } else if (strcmp(options[i], "-O3")) {
            fprintf(stderr, "stand-in: what is %s?\n", options[i]), abort();
        }
    }
    const int refused = NVRTC("nvrtcCompileProgram", program, kept, mine);
    free(mine);
    return refused;
}
int hiprtcDestroyProgram(handle *program) { return NVRTC("nvrtcDestroyProgram", program); }
int hiprtcGetProgramLogSize(handle program, size_t *bytes) { return NVRTC("nvrtcGetProgramLogSize", program, bytes); }
int hiprtcGetProgramLog(handle program, char *log) { return NVRTC("nvrtcGetProgramLog", program, log); }
int hiprtcGetCodeSize(handle program, size_t *bytes) { return NVRTC("nvrtcGetCUBINSize", program, bytes); }
int hiprtcGetCode(handle program, char *code) { return NVRTC("nvrtcGetCUBIN", program, code); }
const char *hiprtcGetErrorString(int error) {
    const char *(*words)(int) = nvrtc("nvrtcGetErrorString");
    return words(error);
}
