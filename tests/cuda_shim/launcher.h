// Runs a CUDA kernel's source on the CPU: the launch is two loops over blocks and threads.
//
// Included before a .cu file. Threads run one after the other; those of a kernel with barriers (SHIM_BARRIERS) are
// the fibers of barriers.h.
#pragma once
#include <cstddef>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct Index {
    unsigned x, y, z;
};
static thread_local Index gridDim, blockDim, blockIdx, threadIdx;

#ifdef SHIM_BARRIERS
#include "barriers.h"
#endif

// One thread runs at a time, so that these need no lock. Whether a device's are atomic is not shown here.
template <class T>
T atomicAdd(T *to, T x) {
    const T before = *to;
    *to += x;
    return before;
}
template <class T>
T atomicMax(T *to, T x) {
    const T before = *to;
    if (x > before) *to = x;
    return before;
}

template <class... Arguments, std::size_t... i>
void call(void (*kernel)(Arguments...), void **arguments, std::index_sequence<i...>) {
    kernel(*static_cast<Arguments *>(arguments[i])...);
}

// As cuLaunchKernel: one pointer per argument.
template <class... Arguments>
void launch(void (*kernel)(Arguments...), unsigned grid, unsigned block, void **arguments) {
    gridDim = {grid, 1, 1};
    blockDim = {block, 1, 1};
#ifdef SHIM_BARRIERS
    const auto thread = [=] { call(kernel, arguments, std::index_sequence_for<Arguments...>{}); };
    body = [](const void *of) { (*static_cast<decltype(thread) *>(of))(); };
    closure = &thread;
    for (unsigned b = 0; b < grid; ++b)
        run_block(block, [=](unsigned t) {
            blockIdx = {b, 0, 0};
            threadIdx = {t, 0, 0};
        });
    closure = nullptr;
#else
    for (unsigned b = 0; b < grid; ++b)
        for (unsigned t = 0; t < block; ++t) {
            blockIdx = {b, 0, 0};
            threadIdx = {t, 0, 0};
            call(kernel, arguments, std::index_sequence_for<Arguments...>{});
        }
#endif
}
