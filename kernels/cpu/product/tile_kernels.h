// The tile kernels of products, by step, rows and vectors.
#ifndef LOWPREC_TILE_KERNELS_H
#define LOWPREC_TILE_KERNELS_H

#include "product/chain.h"

namespace lowprec {
inline namespace LP_ISA {

template <class C>
using KernelOf = void (*)(const C &, const Rounders &, const float *a, const float *b, TileSums &to);
typedef KernelOf<Chain> Kernel;

template <class C, class Step, int rows, int vectors, bool exact>
void tile_kernel(const C &chain, const Rounders &rounders, const float *a, const float *b, TileSums &to) {
    run_chains<Step, rows, vectors, exact>(chain, rounders, a, b, to);
}

template <class Step, int rows, bool exact, class C = Chain>
KernelOf<C> kernel_of_rows(int vectors) {
    return vectors == 1 ? tile_kernel<C, Step, rows, 1, exact> : tile_kernel<C, Step, rows, 2, exact>;
}

// `rows` is tile_rows, 4, 2 or 1. Without a fused instruction, operands whose products are exact have kernels of their
// own.
template <class Step>
Kernel kernel_of(int rows, int vectors, bool exact) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) {
        if (rows == 4) return kernel_of_rows<Step, 4, true>(vectors);
        return rows == 2 ? kernel_of_rows<Step, 2, true>(vectors) : kernel_of_rows<Step, 1, true>(vectors);
    }
#endif
    (void)exact;
    if (rows == tile_rows) return kernel_of_rows<Step, tile_rows, false>(vectors);
    if (rows == 4) return kernel_of_rows<Step, 4, false>(vectors);
    return rows == 2 ? kernel_of_rows<Step, 2, false>(vectors) : kernel_of_rows<Step, 1, false>(vectors);
}

// One per group of steps, each in a file of its own to keep compilation short.
Kernel nearest_kernel(Path path, int rows, int vectors, bool exact);
Kernel stochastic_kernel(Path path, int rows, int vectors, bool exact);
Kernel general_kernel(Path path, int rows, int vectors, bool exact);

// The same contract with another order inside a group (`dot4`, `pairwise`, `aligned`), for the chains of one part.
void adder_kernel(Adder adder, const Chain &chain, const Rounders &rounders, int rows, int vectors, const float *a,
                  const float *b, float *to);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
