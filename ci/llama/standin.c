// A GPU that is none, for tests of caches on GPUs: a ggml backend library with a device of type GPU. Its memory is not the
// host's, so ggml copies inputs as it does for a GPU. Its backend computes with the host's CPU backend. It calls itself ROCm:
// octaplex then runs its kernels by ci/hip-on-cpu.
//
// Load it before octaplex. The structs are those of ggml-backend-impl.h, as bindings/ggml/src/abi.rs declares them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Tensor {
    int type;
    struct Buffer *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op, op_params[16], flags;
    struct Tensor *src[10], *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
} Tensor;
typedef struct Interface {
    void (*free)(struct Buffer *);
    void *(*base)(struct Buffer *);
    int (*init)(struct Buffer *, Tensor *);
    void (*memset)(struct Buffer *, Tensor *, uint8_t, size_t, size_t);
    void (*set)(struct Buffer *, Tensor *, const void *, size_t, size_t);
    void (*get)(struct Buffer *, const Tensor *, void *, size_t, size_t);
    void *set_2d, *get_2d;
    bool (*copy)(struct Buffer *, const Tensor *, Tensor *);
    void (*clear)(struct Buffer *, uint8_t);
    void *reset;
} Interface;
typedef struct Buffer {
    Interface interface;
    void *type, *context;
    size_t size;
    int usage;
} Buffer;
typedef struct Backend {
    const void *guid;
    const char *(*name)(struct Backend *);
    void (*free)(struct Backend *);
    void *transfers[5], *synchronize, *plans[4];
    int (*compute)(struct Backend *, void *);
    void *events[2], *optimize, *device, *context;
} Backend;
typedef struct Props {
    const char *name, *description;
    size_t free, total;
    int type;
    const char *id;
    bool caps[8];
} Props;
typedef struct Device {
    const char *(*name)(struct Device *), *(*description)(struct Device *);
    void (*memory)(struct Device *, size_t *, size_t *);
    int (*type)(struct Device *);
    void (*props)(struct Device *, Props *);
    Backend *(*start)(struct Device *, const char *);
    void *(*buffer_type)(struct Device *);
    void *host_type, *from_host;
    bool (*supports)(struct Device *, const Tensor *), (*supports_type)(struct Device *, void *);
    void *offload, *events[3], *registry, *context;
} Device;

enum { CPU = 0, GPU = 1, SUCCESS = 0 };
static void *host;
static void *(*cpu_of)(int), *(*start)(void *, const char *), *(*buffer_init)(void *, Interface, void *, size_t);
static bool (*supports)(void *, const Tensor *);
static int (*compute)(void *, void *);
static void (*stop)(void *);
static size_t (*bytes_of)(const Tensor *);
static void *type[10], *registry[6];
static Device devices[2];
static int count = 1;

static void b_free(Buffer *b) { free(b->context); }
static void *b_base(Buffer *b) { return b->context; }
static int b_init(Buffer *b, Tensor *t) { return (void)b, (void)t, SUCCESS; }
static void b_memset(Buffer *b, Tensor *t, uint8_t v, size_t at, size_t n) { (void)b, memset((char *)t->data + at, v, n); }
static void b_set(Buffer *b, Tensor *t, const void *p, size_t at, size_t n) { (void)b, memcpy((char *)t->data + at, p, n); }
static void b_get(Buffer *b, const Tensor *t, void *p, size_t at, size_t n) { (void)b, memcpy(p, (const char *)t->data + at, n); }
// As CUDA: only between buffers with functions of its own.
static bool b_copy(Buffer *b, const Tensor *from, Tensor *to) {
    if ((from->view_src ? from->view_src : from)->buffer->interface.free != b_free) return false;
    return (void)b, memcpy(to->data, from->data, bytes_of(from)), true;
}
static void b_clear(Buffer *b, uint8_t v) { memset(b->context, v, b->size); }
static const char *t_name(void *t) { return (void)t, "ROCm0"; }
static size_t t_alignment(void *t) { return (void)t, 128; }
static void *t_alloc(void *t, size_t n) {
    Interface i = {b_free, b_base, b_init, b_memset, b_set, b_get, 0, 0, b_copy, b_clear, 0};
    return buffer_init(t, i, aligned_alloc(128, (n + 255) / 128 * 128), n);
}
static const char *k_name(Backend *k) { return (void)k, "ROCm0"; }
static void k_free(Backend *k) { stop(k->context), free(k); }
static int k_compute(Backend *k, void *graph) { return compute(k->context, graph); }
static void k_synchronize(Backend *k) { (void)k; }
static const char *d_name(Device *d) { return d == devices ? "ROCm0" : "ROCm1"; }
static void d_memory(Device *d, size_t *f, size_t *t) { (void)d, *f = *t = (size_t)8 << 30; }
static int d_type(Device *d) { return (void)d, GPU; }
static void d_props(Device *d, Props *p) {
    p->name = p->description = d_name(d), p->type = GPU, p->id = 0, d_memory(d, &p->free, &p->total);
    memset(p->caps, 0, 4);
}
static Backend *d_start(Device *d, const char *params) {
    Backend *k = calloc(1, sizeof *k);
    static const char guid[16] = "octaplexstandin";
    return (void)params, k->guid = guid, k->name = k_name, k->free = k_free, k->compute = k_compute, k->synchronize = (void *)k_synchronize, k->device = d, k->context = start(cpu_of(CPU), 0), k;
}
static void *d_buffer_type(Device *d) { return (void)d, type; }
static bool d_supports(Device *d, const Tensor *op) { return (void)d, supports(cpu_of(CPU), op); }
static bool d_supports_type(Device *d, void *t) { return (void)d, t == type; }
static const char *r_name(void *r) { return (void)r, "ROCm"; }
static size_t r_count(void *r) { return (void)r, count; }
static void *r_device(void *r, size_t number) { return (void)r, &devices[number]; }
static void *r_address(void *r, const char *name) { return (void)r, (void)name, (void *)0; }

void *ggml_backend_init(void) {
    Dl_info info;
    if (dladdr(__builtin_return_address(0), &info)) host = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!host) host = dlopen(0, RTLD_LAZY);
    cpu_of = dlsym(host, "ggml_backend_dev_by_type"), start = dlsym(host, "ggml_backend_dev_init");
    buffer_init = dlsym(host, "ggml_backend_buffer_init"), supports = dlsym(host, "ggml_backend_dev_supports_op");
    compute = dlsym(host, "ggml_backend_graph_compute"), stop = dlsym(host, "ggml_backend_free"), bytes_of = dlsym(host, "ggml_nbytes");
    const char *(*version)(void) = dlsym(host, "ggml_version");
    if (!cpu_of || !start || !buffer_init || !supports || !compute || !stop || !bytes_of || !version) return 0;
    const char *text = version();
    const int api = strtol(strchr(text, '.') + 1, 0, 10) >= 26 ? 3 : 2, n = api == 3;
    type[0] = t_name, type[1] = t_alloc, type[2 + n] = t_alignment, type[n ? 8 : 6] = devices;
    devices[0] = (Device){d_name, d_name, d_memory, d_type, d_props, d_start, d_buffer_type, 0, 0, d_supports, d_supports_type, 0, {0}, registry, 0};
    registry[0] = (void *)(intptr_t)api, registry[1] = r_name, registry[2] = r_count, registry[3] = r_device, registry[4] = r_address;
    return registry;
}
