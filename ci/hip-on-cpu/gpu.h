// The functions of clang for AMD's GPUs, for g++ and a CPU: stand_in.cpp puts it before the kernels' source, hip.cuh first. A block of threads at a
// time; a thread is a fiber, which runs until it meets others: 32 lanes at a shuffle, all of the block at a barrier. So no two threads
// run at once, and what one writes the next has: a wait too few shows only where it matters in that order.
#ifndef __x86_64__
#error "fibers are written for x86-64"
#endif
#define __HIP__ 1
#define __gfx90a__ 1

namespace on_cpu {
struct Warp {
    unsigned live, met, barred; // lanes that have not ended; that wait for their warp, for the block
    int words[2][32];           // what lanes show, by turns: who comes to the next shuffle first leaves the last one's alone
};
struct Thread {
    void *stack, *next; // where it goes on
    Warp *warp;
    Thread *after;           // the next lane, of the last one the first
    unsigned bit, turn, lane, id;
};
constexpr unsigned MOST = 1024; // threads of a block
static Thread threads[MOST], scheduler, *current;
static Warp warps[MOST / 32];
static unsigned live, barred, count; // of a block; warps
static unsigned block[3], grid[3], size;
static bool stuck;
static void (*kernel)(const void *);
static const void *parameter;

// Goes on as another thread. Jumps, and is part of its callers, so that what a CPU foretells of returns is right.
static inline __attribute__((always_inline)) void change(Thread *from, Thread *to) {
    current = to;
    asm volatile("push %%rbp\n lea 1f(%%rip), %%rax\n mov %%rsp, (%0)\n mov %%rax, 8(%0)\n mov (%1), %%rsp\n jmp *8(%1)\n 1: pop %%rbp"
                 : "+D"(from), "+S"(to)::"rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
static inline unsigned ready(const Warp &w) { return w.live & ~w.met & ~w.barred; }
// Another thread's turn: of another lane, or of another warp.
static __attribute__((noinline)) Thread *other(Thread *me) {
    Warp *w = me->warp;
    unsigned lanes = ready(*w);
    for (unsigned i = 0; !lanes && i < count; i++) {
        w = w + 1 < warps + count ? w + 1 : warps;
        lanes = ready(*w);
    }
    if (lanes) return threads + 32 * (w - warps) + __builtin_ctz(lanes);
    stuck = live != 0;
    return &scheduler;
}
// Mostly of the next lane, which is foretold: nothing waits for what is read here.
static inline __attribute__((always_inline)) void yield(Thread *me) {
    Thread *after = me->after;
    if (__builtin_expect(!(ready(*me->warp) & after->bit), 0)) after = other(me);
    change(me, after);
}
static inline void all_here() {
    barred = 0;
    for (unsigned i = 0; i < count; i++) warps[i].barred = 0;
}
static inline __attribute__((always_inline)) void meet(Thread *me) {
    Warp *w = me->warp;
    const unsigned met = w->met | me->bit;
    w->met = met == w->live ? 0 : met;
    if (met != w->live) yield(me);
}
static __attribute__((noinline)) void meet_warp() { meet(current); }
static __attribute__((noinline)) void meet_block() {
    Thread *me = current;
    me->warp->barred |= me->bit;
    if (++barred == live) all_here();
    else yield(me);
}
static __attribute__((noinline)) int shown(int at, int x) {
    Thread *me = current;
    int *words = me->warp->words[me->turn ^= 1];
    words[me->lane] = x;
    meet(me);
    return words[at >> 2 & 31];
}
static void begin() {
    kernel(parameter);
    Thread *me = current;
    Warp *w = me->warp;
    w->live &= ~me->bit, live--;
    if (w->live && w->met == w->live) w->met = 0;
    if (live && barred == live) all_here();
    yield(me);
    __builtin_unreachable();
}
static void run_block(char *stacks, unsigned long each) {
    live = size, barred = 0, count = (size + 31) / 32;
    for (unsigned i = 0; i < count; i++) warps[i].live = size - 32 * i >= 32 ? ~0u : (1u << size % 32) - 1, warps[i].met = warps[i].barred = 0;
    for (unsigned i = 0; i < size; i++)
        threads[i] = {stacks + (i + 1) * each - 8, (void *)begin, warps + i / 32, threads + (i % 32 == 31 || i + 1 == size ? i / 32 * 32 : i + 1), 1u << i % 32, 0, i % 32, i};
    change(&scheduler, threads);
}
} // namespace on_cpu

static inline unsigned __builtin_amdgcn_workitem_id_x() { return on_cpu::current->id; }
static inline unsigned __builtin_amdgcn_workgroup_id_x() { return on_cpu::block[0]; }
static inline unsigned __builtin_amdgcn_workgroup_id_y() { return on_cpu::block[1]; }
static inline unsigned __builtin_amdgcn_workgroup_id_z() { return on_cpu::block[2]; }
static inline unsigned __builtin_amdgcn_workgroup_size_x() { return on_cpu::size; }
static inline unsigned __builtin_amdgcn_workgroup_size_y() { return 1; }
static inline unsigned __builtin_amdgcn_workgroup_size_z() { return 1; }
static inline unsigned __builtin_amdgcn_grid_size_x() { return on_cpu::grid[0] * on_cpu::size; }
static inline unsigned __builtin_amdgcn_grid_size_y() { return on_cpu::grid[1]; }
static inline unsigned __builtin_amdgcn_grid_size_z() { return on_cpu::grid[2]; }
static inline int __builtin_amdgcn_mbcnt_lo(unsigned, int) { return 0; }
static inline int __builtin_amdgcn_mbcnt_hi(unsigned, int) { return on_cpu::current->lane; }
static inline int __builtin_amdgcn_ds_bpermute(int at, int x) { return on_cpu::shown(at, x); }
static inline void __builtin_amdgcn_s_barrier() { on_cpu::meet_block(); }
static inline void __builtin_amdgcn_wave_barrier() { on_cpu::meet_warp(); }
#define __builtin_amdgcn_fence(...) ((void)0)
// No two threads run at once.
static inline unsigned __atomic_fetch_min(unsigned *to, unsigned x, int) {
    const unsigned was = *to;
    if (x < was) *to = x;
    return was;
}
static inline unsigned __atomic_fetch_max(unsigned *to, unsigned x, int) {
    const unsigned was = *to;
    if (x > was) *to = x;
    return was;
}
static inline int __builtin_amdgcn_sdot4(int a, int b, int c, bool) {
    return c + (signed char)a * (signed char)b + (signed char)(a >> 8) * (signed char)(b >> 8) + (signed char)(a >> 16) * (signed char)(b >> 16) +
           (a >> 24) * (b >> 24);
}
// Selectors 0 to 3 are the second's bytes.
static inline unsigned __builtin_amdgcn_perm(unsigned high, unsigned low, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= (unsigned)(bytes >> 8 * (selector >> i & 7) & 0xFF) << i;
    return out;
}

// All blocks of a grid; false: threads of one wait for others that do not come. `shared` are places and bytes of what a block shares.
namespace on_cpu {
struct Piece {
    void *at;
    unsigned long bytes;
};
} // namespace on_cpu
extern "C" __attribute__((visibility("default"))) bool on_cpu_run(void (*kernel)(const void *), const void *parameter, const unsigned *grid, unsigned size,
                                                                  const on_cpu::Piece *shared, unsigned long pieces, char *stacks, unsigned long each) {
    on_cpu::kernel = kernel, on_cpu::parameter = parameter, on_cpu::size = size, on_cpu::stuck = false;
    for (int i = 0; i < 3; i++) on_cpu::grid[i] = grid[i];
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0] && !on_cpu::stuck; x++) {
                on_cpu::block[0] = x, on_cpu::block[1] = y, on_cpu::block[2] = z;
                for (unsigned long i = 0; i < pieces; i++) __builtin_memset(shared[i].at, 0xFF, shared[i].bytes); // nobody's numbers
                on_cpu::run_block(stacks, each);
            }
    return !on_cpu::stuck;
}
