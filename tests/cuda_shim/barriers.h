// The threads of a block as fibers: between two barriers they run one after the other, in an order drawn anew each time.
//
// Shared memory is static memory: one block runs at a time. A barrier that a thread of the block never reaches ends
// the process. Not shown here: warps, races within one statement, bank conflicts, and the memory model.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#define __shared__ static

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    enum { ready, waiting, ended } state;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned running;
static std::function<void()> body;
static std::mt19937 shuffles(1);

static void fiber_main() {
    body();
    fibers[running].state = Fiber::ended;
}

__attribute__((noinline, unused)) static void __syncthreads() {
    fibers[running].state = Fiber::waiting;
    swapcontext(&fibers[running].context, &scheduler);
}

// Runs the body once for each thread of a block; enter(t) makes t the current one.
template <class Enter>
static void run_block(unsigned threads, const Enter &enter) {
    fibers.resize(threads);
    std::vector<unsigned> order(threads);
    for (unsigned t = 0; t < threads; ++t) {
        order[t] = t;
        Fiber &f = fibers[t];
        f.stack.resize(1 << 17);
        f.state = Fiber::ready;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = &scheduler;
        makecontext(&f.context, fiber_main, 0);
    }
    for (unsigned alive = threads; alive;) {
        std::shuffle(order.begin(), order.end(), shuffles);
        unsigned ended = 0;
        for (unsigned t : order) {
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
