// HIP's library and hipRTC's, as much of them as octaplex calls, without a GPU: g++ compiles the kernels, behind gpu.h, and blocks of
// threads run on this CPU one after the other. What it shows is the host's side of the feature `hip` and what the kernels' portable implementation
// computes; nothing of a GPU's instructions, of threads that run at once, or of its speed. ci/hip-on-cpu.sh builds it and runs tests on it.
//   g++ -std=c++17 -O1 -shared -fPIC -Wl,-soname,libamdhip64.so '-DGPU_H="CHECKOUT/ci/hip-on-cpu/gpu.h"' stand_in.cpp -o ROCM/lib/libamdhip64.so -ldl,
//   the same file as ROCM/lib/libhiprtc.so, and ROCM_PATH=ROCM
//   OCTAPLEX_STAND_IN_SHARED=65536    bytes of shared memory of a block of threads, as AMD's GPUs have them; without it what NVIDIA's have
//   OCTAPLEX_STAND_IN_LOST=N          the GPU is lost at launch N, counted from 1: that and every call behind it fail
//   OCTAPLEX_STAND_IN_MEMORY=BYTES    the GPU's memory; 4 GiB without it
//   OCTAPLEX_STAND_IN=asan            kernels by AddressSanitizer, which the process has loaded: LD_PRELOAD=$(gcc -print-file-name=libasan.so)
//   OCTAPLEX_STAND_IN_OPTIONS="-O0 -g"  more for g++, behind its own; "-fsanitize=bounds -fsanitize-undefined-trap-on-error", say
//   OCTAPLEX_STAND_IN_KEEP=1          what g++ is given stays, and its commands are said
// Device memory ends at a page that nobody may touch, and copies stay within allocations: what a kernel does beyond them ends it, and the
// GPU is lost, as GPUs are.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <spawn.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char **environ;

namespace {
typedef uint64_t address;
enum { OK = 0, INVALID = 1, MEMORY = 2, CONFIGURATION = 9, DIRECTION = 21, NO_DEVICE = 100, DEVICE = 101, IMAGE = 200, HANDLE = 400, NOT_FOUND = 500,
       ILLEGAL = 700, LOST = 719, UNSUPPORTED = 900, INVALIDATED = 901, IMPLICIT = 906 };

size_t number(const char *name, size_t otherwise) {
    const char *said = getenv(name);
    return said && *said ? strtoull(said, nullptr, 10) : otherwise;
}
constexpr size_t MOST_SHARED = 232448, STACK = 256 * 1024 + 832, MOST_THREADS = 1024; // stacks lie apart so that caches hold them

// AddressSanitizer's calls, if the build has it.
const bool sanitized = [] {
    const char *said = getenv("OCTAPLEX_STAND_IN");
    return said && !strcmp(said, "asan");
}();
void (*const poison)(const void *, size_t) = (void (*)(const void *, size_t))dlsym(RTLD_DEFAULT, "__asan_poison_memory_region");
void (*const unpoison)(const void *, size_t) = (void (*)(const void *, size_t))dlsym(RTLD_DEFAULT, "__asan_unpoison_memory_region");

// ---- a GPU that is lost stays so -------------------------------------------------------------------------------------

std::atomic<int> lost{OK};
#define UNLESS_LOST                                                                                                                                  \
    if (const int why = lost) return why

// ---- memory -----------------------------------------------------------------------------------------------------------

std::mutex allocations_lock;
struct Allocation {
    size_t bytes;
    char *mapped;
    size_t length;
};
std::map<address, Allocation> allocations;
size_t allocated;

bool within(address at, size_t bytes) {
    std::lock_guard<std::mutex> guard(allocations_lock);
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin()) return false;
    const auto &[start, of] = *--next;
    return at - start <= of.bytes && bytes <= of.bytes - (at - start);
}

// ---- streams, graphs --------------------------------------------------------------------------------------------------

typedef std::function<int()> Work;
struct Graph {
    std::vector<Work> work;
    bool ended = false; // its capture: streams that joined it go on without
};
struct Stream {
    std::recursive_mutex lock;
    std::shared_ptr<Graph> captured; // its operations go there
    bool first = false;              // the capture began here
};
struct Event {
    std::chrono::steady_clock::time_point at;
    std::shared_ptr<Graph> captured;
};
Stream default_stream;
Stream &stream_of(void *handle) {
    Stream &stream = (uintptr_t)handle <= 2 ? default_stream : *(Stream *)handle;
    if (stream.captured && stream.captured->ended) stream.captured.reset();
    return stream;
}

// At once, or when the graph is launched.
int ask(void *handle, Work work) {
    UNLESS_LOST;
    Stream &stream = stream_of(handle);
    std::lock_guard<std::recursive_mutex> guard(stream.lock);
    if (!stream.captured) return work();
    stream.captured->work.push_back(std::move(work));
    return OK;
}

// ---- kernels ----------------------------------------------------------------------------------------------------------

struct Piece { // gpu.h's
    void *at;
    unsigned long bytes;
};
struct Module {
    void *library;
    bool (*run)(void (*)(const void *), const void *, const unsigned *, unsigned, const Piece *, unsigned long, char *, unsigned long);
    std::string image;
    std::mutex lock; // its shared memory is variables of its own: one block at a time
    std::map<std::string, std::unique_ptr<struct Function>> functions;
};
struct Function {
    Module *module;
    std::string name;
    void (*kernel)(const void *);
    size_t parameter, threads, own; // bytes, the most threads, bytes of shared memory
    std::vector<Piece> shared;      // the first is what a launch asks for
};

// The shared memory of a kernel: variables of functions, `_ZZ...`, that it or what it calls has relocations of.
std::vector<Piece> shared_of(const Module &module, const char *name) {
    const char *bytes = module.image.data();
    const auto &header = *(const Elf64_Ehdr *)bytes;
    const auto *sections = (const Elf64_Shdr *)(bytes + header.e_shoff);
    const Elf64_Shdr *table = nullptr;
    for (int i = 0; i < header.e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB) table = sections + i;
    if (!table) return {};
    const auto *symbols = (const Elf64_Sym *)(bytes + table->sh_offset);
    const char *names = bytes + sections[table->sh_link].sh_offset;
    std::map<uint64_t, const Elf64_Sym *> objects, functions;
    std::vector<uint64_t> todo;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const int type = ELF64_ST_TYPE(symbols[i].st_info);
        if (type == STT_OBJECT && !strncmp(names + symbols[i].st_name, "_ZZ", 3)) objects[symbols[i].st_value] = symbols + i;
        if (type == STT_FUNC && symbols[i].st_size) functions[symbols[i].st_value] = symbols + i;
        if (type == STT_FUNC && !strcmp(names + symbols[i].st_name, name)) todo.push_back(symbols[i].st_value);
    }
    auto around = [](const std::map<uint64_t, const Elf64_Sym *> &all, uint64_t at) -> const Elf64_Sym * {
        auto next = all.upper_bound(at);
        return next == all.begin() || at >= (--next)->first + next->second->st_size ? nullptr : next->second;
    };
    const uint64_t base = (uint64_t)dlsym(module.library, name) - (todo.empty() ? 0 : todo[0]);
    std::set<const Elf64_Sym *> found, seen;
    for (size_t k = 0; k < todo.size(); k++) {
        const Elf64_Sym *function = around(functions, todo[k]);
        if (!function || !seen.insert(function).second) continue;
        for (int i = 0; i < header.e_shnum; i++) {
            if (sections[i].sh_type != SHT_RELA || sections[i].sh_flags & SHF_ALLOC) continue;
            const auto *relocations = (const Elf64_Rela *)(bytes + sections[i].sh_offset);
            for (size_t r = 0; r < sections[i].sh_size / sizeof *relocations; r++) {
                if (relocations[r].r_offset - function->st_value >= function->st_size) continue;
                const Elf64_Sym &of = symbols[ELF64_R_SYM(relocations[r].r_info)];
                const uint64_t at = of.st_value + (ELF64_ST_TYPE(of.st_info) == STT_SECTION ? relocations[r].r_addend + 4 : 0);
                if (const Elf64_Sym *object = around(objects, at)) found.insert(object);
                todo.push_back(at);
            }
        }
    }
    std::vector<Piece> pieces;
    for (const auto *object : found) pieces.push_back({(void *)(base + object->st_value), object->st_size});
    return pieces;
}

struct Stacks {
    char *base = nullptr;
    char *get() {
        if (!base) {
            void *mapped = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            base = mapped == MAP_FAILED ? nullptr : (char *)mapped;
        }
        return base;
    }
    ~Stacks() {
        if (base) munmap(base, STACK * MOST_THREADS);
    }
};
thread_local Stacks stacks;
thread_local sigjmp_buf escape;
thread_local const char *running;
struct sigaction before[65];

void fault(int signal, siginfo_t *info, void *context) {
    if (running) {
        char text[200];
        const int length = snprintf(text, sizeof text, "stand-in: kernel %s: %s, at %p\n", running,
                                    signal == SIGSEGV ? "memory that is nobody's, or not as aligned as it says" : "a trap", info->si_addr);
        if (write(2, text, length) < 0) abort();
        siglongjmp(escape, 1);
    }
    if (before[signal].sa_flags & SA_SIGINFO) before[signal].sa_sigaction(signal, info, context);
    else sigaction(signal, &before[signal], nullptr); // comes again
}
void watch() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction ours = {};
        ours.sa_sigaction = fault;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int signal : {SIGSEGV, SIGILL, SIGFPE}) sigaction(signal, &ours, &before[signal]);
    });
}

// Ends in a jump where a kernel faults: nothing here has a destructor.
int run(const Function &f, const void *parameter, const unsigned *grid, unsigned threads, const Piece *pieces, size_t count, char *base) {
    if (sigsetjmp(escape, 1)) {
        running = nullptr;
        return lost = ILLEGAL;
    }
    running = f.name.c_str();
    const bool done = f.module->run(f.kernel, parameter, grid, threads, pieces, count, base, STACK);
    running = nullptr;
    if (done) return OK;
    fprintf(stderr, "stand-in: kernel %s: threads wait for others that do not come\n", f.name.c_str());
    return lost = LOST;
}

int launch(const Function &f, const void *parameter, const unsigned *grid, unsigned threads, unsigned shared) {
    UNLESS_LOST;
    static std::atomic<size_t> launches{0};
    static const size_t last = number("OCTAPLEX_STAND_IN_LOST", 0);
    if (++launches == last) return lost = LOST;
    char *base = stacks.get();
    if (!base) return MEMORY;
    watch();
    std::lock_guard<std::mutex> guard(f.module->lock);
    std::vector<Piece> pieces = f.shared;
    pieces[0].bytes = shared;
    if (sanitized && pieces[0].at) poison(pieces[0].at, MOST_SHARED), unpoison(pieces[0].at, shared);
    return run(f, parameter, grid, threads, pieces.data(), pieces.size(), base);
}

// ---- compiling --------------------------------------------------------------------------------------------------------

asm(".section .rodata\n.globl stand_in_gpu\n.hidden stand_in_gpu\nstand_in_gpu: .incbin \"" GPU_H "\"\n.byte 0\n.text");
extern "C" const char stand_in_gpu[];

std::vector<std::string> compiler() {
    std::vector<std::string> words = {"g++", "-x", "c++", "-std=gnu++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv",
                                      "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique",
                                      "-fno-aggressive-loop-optimizations", // the text counts through all rows of an array from the first
                                      "-fno-ipa-reference", "-fno-ipa-modref", // a fiber's wait is others' turn to write
                                      "-fno-asynchronous-unwind-tables", "-fomit-frame-pointer", "-mno-red-zone",
                                      "-fno-stack-protector", "-fcf-protection=none", "-ffunction-sections", "-Wl,-Bsymbolic,--emit-relocs"};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) words.push_back("-march=x86-64-v3");
    if (sanitized) words.push_back("-fsanitize=address");
    const char *more = getenv("OCTAPLEX_STAND_IN_OPTIONS");
    for (const char *at = more ? more : ""; *at;) {
        const size_t length = strcspn(at, " ");
        if (length) words.emplace_back(at, length);
        at += length + (at[length] == ' ');
    }
    return words;
}

// All that an image depends on and that the library does not know: part of the GPU's name, so that it keeps images apart.
uint64_t edition() {
    uint64_t hash = 0xcbf29ce484222325;
    auto add = [&](const char *text) {
        for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    };
    add(stand_in_gpu);
    for (const auto &word : compiler()) add(word.c_str());
    return hash;
}

// The text with what g++ says otherwise: shared memory is variables, a kernel takes its parameter's address; and behind it what the
// host wants to know of each kernel.
std::string edited(const std::string &text) {
    auto replaced = [](const std::string &in, const std::string &from, const std::string &to) {
        std::string out;
        size_t at = 0;
        for (size_t found; (found = in.find(from, at)) != std::string::npos; at = found + from.size()) out += in.substr(at, found - at) + to;
        return out + in.substr(at);
    };
    std::string out = replaced(text, "#define __shared__ __attribute__((shared))", "#define __shared__ static");
    out = replaced(out, "extern __shared__", "extern");
    out = replaced(out, "#define __launch_bounds__(threads, ...) __attribute__((launch_bounds(threads)))", "#define __launch_bounds__(...)");
    std::string behind = "namespace octaplex {\n";
    std::set<std::string> seen;
    for (size_t at = 0; (at = out.find("extern \"C\" __global__ ", at)) != std::string::npos;) {
        const size_t open = out.find("(const __grid_constant__ ", at), close = out.find(')', open);
        const std::string head = out.substr(at, open - at), parameter = out.substr(open + 25, close - open - 25), type = parameter.substr(0, parameter.find(' '));
        const std::string name = head.substr(head.find_last_of(" \n") + 1);
        std::string bound = "1024";
        if (const size_t said = head.find("__launch_bounds__("); said != std::string::npos) {
            const size_t from = said + 18;
            size_t to = from;
            for (int depth = 0; depth > 0 || (head[to] != ',' && head[to] != ')'); to++) depth += head[to] == '(' ? 1 : head[to] == ')' ? -1 : 0;
            bound = head.substr(from, to - from);
        }
        if (seen.insert(name).second)
            behind += "extern \"C\" const unsigned on_cpu_parameter_" + name + " = sizeof(" + type + "), on_cpu_threads_" + name + " = " + bound + ";\n";
        const std::string taken = "(const " + type + " &" + parameter.substr(type.size() + 1) + ")";
        out.replace(open, close + 1 - open, taken);
        at = open + taken.size();
    }
    static const std::regex array("extern (__align__\\([0-9]+\\) )?(\\w+) (\\w+)\\[\\];");
    for (std::sregex_iterator at(out.begin(), out.end(), array), end; at != end; ++at)
        if (seen.insert((*at)[3].str() + "[]").second) {
            const std::string type = (*at)[2], name = (*at)[3];
            behind += "alignas(1024) " + type + " " + name + "[" + std::to_string(MOST_SHARED) + " / sizeof(" + type + ")];\nextern \"C\" void *const on_cpu_shared = " + name + ";\n";
        }
    return "#line 1 \"gpu.h\"\n" + std::string(stand_in_gpu) + "\n#line 1 \"kernels\"\n" + out + behind + "}\n";
}

bool write_file(const std::string &path, const char *bytes, size_t count) {
    FILE *file = fopen(path.c_str(), "wb");
    if (!file) return false;
    const bool written = fwrite(bytes, 1, count, file) == count;
    return fclose(file) == 0 && written;
}
bool read_file(const std::string &path, std::string &bytes) {
    FILE *file = fopen(path.c_str(), "rb");
    if (!file) return false;
    char piece[65536];
    bytes.clear();
    for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;) bytes.append(piece, got);
    return fclose(file) == 0;
}

// As many compilers at once as there are processors.
struct Turn {
    static std::mutex lock;
    static std::condition_variable freed;
    static unsigned taken;
    Turn() {
        std::unique_lock<std::mutex> held(lock);
        freed.wait(held, [] { return taken < std::max(1u, std::thread::hardware_concurrency()); });
        taken++;
    }
    ~Turn() {
        std::lock_guard<std::mutex> held(lock);
        taken--, freed.notify_one();
    }
};
std::mutex Turn::lock;
std::condition_variable Turn::freed;
unsigned Turn::taken;

struct Program {
    std::string text, log, code;
};
int compile(Program &program, const std::vector<std::string> &defines) {
    Turn turn;
    const char *root = getenv("TMPDIR");
    std::string folder = std::string(root && *root ? root : "/tmp") + "/octaplex-stand-in-XXXXXX";
    if (!mkdtemp(&folder[0])) return 1;
    const std::string source = folder + "/kernels.cpp", object = folder + "/kernels.so", log = folder + "/log", text = edited(program.text);
    std::vector<std::string> words = compiler();
    words.insert(words.end(), defines.begin(), defines.end());
    words.insert(words.end(), {source, "-o", object, "-lm"});
    std::vector<char *> arguments;
    for (auto &word : words) arguments.push_back(&word[0]);
    arguments.push_back(nullptr);
    int status = -1;
    if (write_file(source, text.data(), text.size())) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), 0x241 /* written, made, emptied */, 0600);
        pid_t child;
        if (posix_spawnp(&child, "g++", &actions, nullptr, arguments.data(), environ) == 0) waitpid(child, &status, 0);
        posix_spawn_file_actions_destroy(&actions);
    }
    read_file(log, program.log);
    const bool done = status == 0 && read_file(object, program.code);
    if (getenv("OCTAPLEX_STAND_IN_KEEP")) {
        std::string line;
        for (auto &word : words) line += word + " ";
        fprintf(stderr, "stand-in: %s\n", line.c_str());
    } else {
        for (const auto &file : {source, object, log}) unlink(file.c_str());
        rmdir(folder.c_str());
    }
    return done ? 0 : 6; // HIPRTC_ERROR_COMPILATION
}
} // namespace

// ---- HIP --------------------------------------------------------------------------------------------------------------

extern "C" {
typedef void *handle;

int hipInit(unsigned) {
    if (!sanitized || (poison && unpoison)) return OK;
    fprintf(stderr, "stand-in: no AddressSanitizer in this process: LD_PRELOAD=$(gcc -print-file-name=libasan.so)\n");
    return NO_DEVICE;
}
int hipGetLastError() { return OK; }
const char *hipGetErrorName(int error) {
    switch (error) {
    case OK: return "hipSuccess";
    case INVALID: return "hipErrorInvalidValue";
    case MEMORY: return "hipErrorOutOfMemory";
    case CONFIGURATION: return "hipErrorInvalidConfiguration";
    case DIRECTION: return "hipErrorInvalidMemcpyDirection";
    case NO_DEVICE: return "hipErrorNoDevice";
    case DEVICE: return "hipErrorInvalidDevice";
    case IMAGE: return "hipErrorInvalidImage";
    case HANDLE: return "hipErrorInvalidHandle";
    case NOT_FOUND: return "hipErrorNotFound";
    case ILLEGAL: return "hipErrorIllegalAddress";
    case LOST: return "hipErrorLaunchFailure";
    case UNSUPPORTED: return "hipErrorStreamCaptureUnsupported";
    case INVALIDATED: return "hipErrorStreamCaptureInvalidated";
    case IMPLICIT: return "hipErrorStreamCaptureImplicit";
    default: return "hipErrorUnknown";
    }
}
int hipGetDeviceCount(int *count) {
    *count = 1;
    return lost;
}
int hipGetDevicePropertiesR0600(unsigned char *properties, int device) {
    UNLESS_LOST;
    if (device) return DEVICE;
    memset(properties, 0, 1472);
    const size_t shared = number("OCTAPLEX_STAND_IN_SHARED", MOST_SHARED);
    const int warp = 32, multiprocessors = 4; // few, so that grids are small
    memcpy(properties, "CPU stand-in", 12);
    memcpy(properties + 296, &shared, sizeof shared);
    memcpy(properties + 308, &warp, sizeof warp);
    memcpy(properties + 388, &multiprocessors, sizeof multiprocessors);
    snprintf((char *)properties + 1160, 256, "gfx900:on-cpu-%016llx", (unsigned long long)edition());
    return OK;
}
int hipSetDevice(int device) {
    UNLESS_LOST;
    return device ? DEVICE : OK;
}
int hipGetDevice(int *device) {
    UNLESS_LOST;
    *device = 0;
    return OK;
}
int hipDeviceSynchronize() { return lost; }

int hipStreamCreateWithFlags(handle *stream, unsigned) {
    UNLESS_LOST;
    *stream = new Stream;
    return OK;
}
int hipStreamDestroy(handle stream) {
    delete (Stream *)stream;
    return lost;
}
int hipStreamSynchronize(handle stream) {
    UNLESS_LOST;
    return stream_of(stream).captured ? UNSUPPORTED : OK;
}
int hipStreamBeginCapture(handle stream, int) {
    UNLESS_LOST;
    Stream &s = stream_of(stream);
    if (&s == &default_stream) return UNSUPPORTED;
    if (s.captured) return INVALID;
    s.captured = std::make_shared<Graph>(), s.first = true;
    return OK;
}
int hipStreamEndCapture(handle stream, handle *graph) {
    UNLESS_LOST;
    Stream &s = stream_of(stream);
    if (!s.captured || !s.first) return INVALID;
    *graph = new Graph(*s.captured), s.captured->ended = true;
    s.captured.reset(), s.first = false;
    return OK;
}
int hipStreamIsCapturing(handle stream, int *status) {
    UNLESS_LOST;
    *status = stream_of(stream).captured != nullptr;
    return OK;
}
int hipLaunchHostFunc(handle stream, void (*call)(void *), void *data) {
    return ask(stream, [=] { return call(data), OK; });
}

int hipEventCreateWithFlags(handle *event, unsigned) {
    UNLESS_LOST;
    *event = new Event;
    return OK;
}
int hipEventDestroy(handle event) {
    delete (Event *)event;
    return lost;
}
int hipEventRecord(handle event, handle stream) {
    UNLESS_LOST;
    *(Event *)event = {std::chrono::steady_clock::now(), stream_of(stream).captured};
    return OK;
}
int hipEventSynchronize(handle) { return lost; }
int hipEventElapsedTime(float *milliseconds, handle start, handle end) {
    UNLESS_LOST;
    *milliseconds = std::chrono::duration<float, std::milli>(((Event *)end)->at - ((Event *)start)->at).count();
    return OK;
}
int hipStreamWaitEvent(handle stream, handle event, unsigned) {
    UNLESS_LOST;
    const auto &captured = ((Event *)event)->captured;
    if (captured && !captured->ended) stream_of(stream).captured = captured; // it is part of the capture from here on
    return OK;
}

int hipModuleLoadData(handle *module, const void *image) {
    UNLESS_LOST;
    // An ELF file ends with its table of sections.
    const unsigned char *bytes = (const unsigned char *)image;
    if (memcmp(bytes, "\177ELF", 4)) return IMAGE;
    uint64_t sections;
    uint16_t each, count;
    memcpy(&sections, bytes + 40, 8), memcpy(&each, bytes + 58, 2), memcpy(&count, bytes + 60, 2);
    const size_t length = sections + (size_t)each * count;
    // A file of its own name each time: for a known name, the loader returns the library that it has loaded.
    const char *root = getenv("TMPDIR");
    std::string path = std::string(root && *root ? root : "/tmp") + "/octaplex-kernels-XXXXXX";
    const int file = mkstemp(&path[0]);
    size_t written = 0;
    for (ssize_t some; file >= 0 && written < length && (some = write(file, bytes + written, length - written)) > 0;) written += some;
    auto made = std::make_unique<Module>();
    made->library = written == length ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (file >= 0) close(file), unlink(path.c_str());
    if (!made->library) {
        fprintf(stderr, "stand-in: %s\n", dlerror());
        return IMAGE;
    }
    made->run = (decltype(made->run))dlsym(made->library, "on_cpu_run");
    if (!made->run) return IMAGE;
    made->image.assign((const char *)image, length);
    *module = made.release();
    return OK;
}
int hipModuleUnload(handle module) {
    dlclose(((Module *)module)->library);
    delete (Module *)module;
    return lost;
}
int hipModuleGetFunction(handle *function, handle module, const char *name) {
    UNLESS_LOST;
    Module *m = (Module *)module;
    std::lock_guard<std::mutex> guard(m->lock);
    auto said = [&](const char *what) {
        const void *at = dlsym(m->library, (std::string("on_cpu_") + what + name).c_str());
        return at ? *(const unsigned *)at : 0u;
    };
    void *kernel = dlsym(m->library, name), *const *shared = (void *const *)dlsym(m->library, "on_cpu_shared");
    if (!kernel || !said("threads_")) return NOT_FOUND;
    auto &place = m->functions[name];
    place.reset(new Function{m, name, (void (*)(const void *))kernel, said("parameter_"), said("threads_"), 0, {{shared ? *shared : nullptr, 0}}});
    for (const Piece &piece : shared_of(*m, name)) place->shared.push_back(piece), place->own += piece.bytes;
    if (getenv("OCTAPLEX_STAND_IN_KEEP")) fprintf(stderr, "stand-in: kernel %s has %zu bytes of shared memory, %zu of its parameter\n", name, place->own, place->parameter);
    *function = place.get();
    return OK;
}
int hipFuncGetAttribute(int *value, int which, handle function) {
    UNLESS_LOST;
    if (which != 1) return INVALID; // SHARED_SIZE_BYTES
    *value = (int)((Function *)function)->own;
    return OK;
}
int hipModuleLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, handle stream,
                          void **parameters, void **) {
    UNLESS_LOST;
    const Function &f = *(Function *)function;
    if (!gx || !gy || !gz || gx > 0x7FFFFFFF || gy > 65535 || gz > 65535 || !bx || bx > f.threads || by != 1 || bz != 1) return CONFIGURATION;
    if (shared + f.own > number("OCTAPLEX_STAND_IN_SHARED", MOST_SHARED) || (shared && !f.shared[0].at)) return INVALID;
    std::vector<uint64_t> parameter((f.parameter + 7) / 8);
    memcpy(parameter.data(), parameters[0], f.parameter);
    return ask(stream, [=, &f, parameter = std::move(parameter)] {
        const unsigned grid[3] = {gx, gy, gz};
        return launch(f, parameter.data(), grid, bx, shared);
    });
}

int hipMalloc(address *at, size_t bytes) {
    UNLESS_LOST;
    const size_t most = number("OCTAPLEX_STAND_IN_MEMORY", size_t{4} << 30), page = 4096;
    std::lock_guard<std::mutex> guard(allocations_lock);
    if (bytes > most || allocated > most - bytes) return MEMORY;
    if (sanitized) { // has its own pages that nobody may touch
        void *made = aligned_alloc(16, std::max<size_t>((bytes + 15) / 16 * 16, 16));
        if (!made) return MEMORY;
        poison((char *)made + bytes, -bytes % 16);
        *at = (address)made, allocations[*at] = {bytes, nullptr, 0}, allocated += bytes;
        return OK;
    }
    const size_t length = (bytes + page - 1) / page * page + 2 * page;
    char *mapped = (char *)mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return MEMORY;
    if (length > 2 * page && mprotect(mapped + page, length - 2 * page, PROT_READ | PROT_WRITE)) return munmap(mapped, length), MEMORY;
    *at = (address)(mapped + length - page) - (bytes + 15) / 16 * 16; // ends where the page does, rounded down to its alignment
    allocations[*at] = {bytes, mapped, length};
    allocated += bytes;
    return OK;
}
int hipFree(address at) {
    std::lock_guard<std::mutex> guard(allocations_lock);
    const auto found = allocations.find(at);
    if (found == allocations.end()) return at ? INVALID : lost.load();
    if (found->second.mapped) munmap(found->second.mapped, found->second.length);
    else unpoison((void *)at, (found->second.bytes + 15) / 16 * 16), free((void *)at);
    allocated -= found->second.bytes;
    allocations.erase(found);
    return lost;
}
int hipMemsetAsync(address at, int value, size_t bytes, handle stream) {
    if (!within(at, bytes)) return INVALID;
    return ask(stream, [=] { return memset((void *)at, value, bytes), OK; });
}
int hipMemsetD8Async(address at, unsigned char value, size_t bytes, handle stream) { return hipMemsetAsync(at, value, bytes, stream); }
int hipMemsetD8(address at, unsigned char value, size_t bytes) { return hipMemsetAsync(at, value, bytes, nullptr); }
int hipMemcpyAsync(address to, address from, size_t bytes, int kind, handle stream) {
    if (kind < 1 || kind > 3) return DIRECTION;
    if ((kind & 1 && !within(to, bytes)) || (kind & 2 && !within(from, bytes))) return INVALID; // 1 to the GPU, 2 from it, 3 both
    return ask(stream, [=] { return memmove((void *)to, (void *)from, bytes), OK; });
}
int hipMemcpyHtoD(address to, void *from, size_t bytes) { return hipMemcpyAsync(to, (address)from, bytes, 1, nullptr); }
int hipMemcpyDtoH(void *to, address from, size_t bytes) { return hipMemcpyAsync((address)to, from, bytes, 2, nullptr); }
int hipMemcpyDtoDAsync(address to, address from, size_t bytes, handle stream) { return hipMemcpyAsync(to, from, bytes, 3, stream); }

int hipGraphInstantiateWithFlags(handle *executable, handle graph, unsigned long long) {
    UNLESS_LOST;
    *executable = new Graph(*(Graph *)graph);
    return OK;
}
int hipGraphDestroy(handle graph) {
    delete (Graph *)graph;
    return lost;
}
int hipGraphExecDestroy(handle executable) {
    delete (Graph *)executable;
    return lost;
}
int hipGraphLaunch(handle executable, handle stream) {
    return ask(stream, [=] {
        for (const auto &work : ((Graph *)executable)->work)
            if (const int failed = work()) return failed;
        return (int)OK;
    });
}

// ---- hipRTC -----------------------------------------------------------------------------------------------------------

int hiprtcCreateProgram(handle *program, const char *text, const char *, int, const char *const *, const char *const *) {
    *program = new Program{text, "", ""};
    return 0;
}
int hiprtcCompileProgram(handle program, int count, const char *const *options) {
    std::vector<std::string> defines;
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "-D", 2)) defines.emplace_back(options[i]);
        else if (strncmp(options[i], "--offload-arch=gfx900:on-cpu-", 29) && strcmp(options[i], "-std=c++17") && strcmp(options[i], "-O3") &&
                 strcmp(options[i], "-ffp-contract=off"))
            fprintf(stderr, "stand-in: what is %s?\n", options[i]), abort();
    return compile(*(Program *)program, defines);
}
int hiprtcDestroyProgram(handle *program) {
    delete (Program *)*program;
    return 0;
}
int hiprtcGetProgramLogSize(handle program, size_t *bytes) {
    *bytes = ((Program *)program)->log.size() + 1;
    return 0;
}
int hiprtcGetProgramLog(handle program, char *log) {
    memcpy(log, ((Program *)program)->log.c_str(), ((Program *)program)->log.size() + 1);
    return 0;
}
int hiprtcGetCodeSize(handle program, size_t *bytes) {
    *bytes = ((Program *)program)->code.size();
    return 0;
}
int hiprtcGetCode(handle program, char *code) {
    memcpy(code, ((Program *)program)->code.data(), ((Program *)program)->code.size());
    return 0;
}
const char *hiprtcGetErrorString(int error) { return error == 6 ? "HIPRTC_ERROR_COMPILATION" : error ? "HIPRTC_ERROR_INTERNAL_ERROR" : "HIPRTC_SUCCESS"; }
}
