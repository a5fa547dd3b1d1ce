// The threads of a block as fibers: between two barriers they run one after the other, in an order drawn anew each time.
//
// Shared memory is static memory: one block runs at a time. A barrier that a thread of the block never reaches ends
// the process. Not shown here: warps, races within one statement, bank conflicts, and the memory model.
#pragma once
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>

// No containers and functions of the standard library: their headers were most of what compiling a kernel took.
#define __shared__ static

struct Fiber {
    ucontext_t context;
    char *stack;
    unsigned place; // in the order: fibers[t].place is the thread whose turn is the t-th
    enum { ready, waiting, ended } state;
};

constexpr unsigned most_threads = 1024, stack_bytes = 1 << 17;
static Fiber fibers[most_threads];
static ucontext_t scheduler;
static unsigned running;
static void (*body)(const void *);
static const void *closure;

// A number below n, of Knuth's linear congruential generator: the same orders in every run.
static unsigned drawn(unsigned n) {
    static unsigned long long state = 1;
    state = state * 6364136223846793005 + 1442695040888963407;
    return unsigned((state >> 33) % n);
}

static void fiber_main() {
    body(closure);
    fibers[running].state = Fiber::ended;
}

__attribute__((noinline, unused)) static void __syncthreads() {
    fibers[running].state = Fiber::waiting;
    swapcontext(&fibers[running].context, &scheduler);
}

// Runs the body once for each thread of a block; enter(t) makes t the current one.
template <class Enter>
static void run_block(unsigned threads, const Enter &enter) {
    if (threads > most_threads) std::abort();
    for (unsigned t = 0; t < threads; ++t) {
        Fiber &f = fibers[t];
        f.place = t;
        if (!f.stack) f.stack = static_cast<char *>(std::malloc(stack_bytes));
        f.state = Fiber::ready;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = stack_bytes;
        f.context.uc_link = &scheduler;
        makecontext(&f.context, fiber_main, 0);
    }
    for (unsigned alive = threads; alive;) {
        for (unsigned t = threads; t > 1; --t) {
            const unsigned other = drawn(t), last = fibers[t - 1].place;
            fibers[t - 1].place = fibers[other].place;
            fibers[other].place = last;
        }
        unsigned ended = 0;
        for (unsigned turn = 0; turn < threads; ++turn) {
            const unsigned t = fibers[turn].place;
            if (fibers[t].state == Fiber::ended) continue;
            running = t;
            enter(t);
            swapcontext(&scheduler, &fibers[t].context);
            ended += fibers[t].state == Fiber::ended;
        }
        if (ended && ended != alive) {
            std::fprintf(stderr, "a barrier that %u of %u threads do not reach\n", ended, alive);
            std::abort();
        }
        alive -= ended;
    }
}
