// The tile kernels of products, by step, rows and vectors.
#ifndef LOWPREC_TILE_KERNELS_H
#define LOWPREC_TILE_KERNELS_H

#include "accumulate/turned_words.h"
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

constexpr int tile_heights[5] = {tile_rows, 4, 3, 2, 1};  // rows of a tile

// The first tile of so many rows.
inline int first_height(i64 rows) {
    int i = 0;
    while (tile_heights[i] > rows) ++i;
    return tile_heights[i];
}

// `rows` is one of tile_heights, `vectors` 1 or 2, or most_vectors for one row. Without a fused instruction, operands
// whose products are exact have kernels of their own.
template <class Step, class C = Chain>
KernelOf<C> kernel_of(int rows, int vectors, bool exact) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) {
        if (vectors == most_vectors) return tile_kernel<C, Step, 1, most_vectors, true>;
        if (rows == 4) return kernel_of_rows<Step, 4, true, C>(vectors);
        if (rows == 3) return kernel_of_rows<Step, 3, true, C>(vectors);
        return rows == 2 ? kernel_of_rows<Step, 2, true, C>(vectors) : kernel_of_rows<Step, 1, true, C>(vectors);
    }
#endif
    (void)exact;
    if (vectors == most_vectors) return tile_kernel<C, Step, 1, most_vectors, false>;
    if (rows == tile_rows) return kernel_of_rows<Step, tile_rows, false, C>(vectors);
    if (rows == 4) return kernel_of_rows<Step, 4, false, C>(vectors);
    if (rows == 3) return kernel_of_rows<Step, 3, false, C>(vectors);
    return rows == 2 ? kernel_of_rows<Step, 2, false, C>(vectors) : kernel_of_rows<Step, 1, false, C>(vectors);
}

// One per group of steps, each in a file of its own to keep compilation short.
Kernel nearest_kernel(Path path, int rows, int vectors, bool exact);
Kernel stochastic_kernel(Path path, int rows, int vectors, bool exact);
Kernel general_kernel(Path path, int rows, int vectors, bool exact);

// Chains of a turned product: rows of a tile are columns, lanes are rows.
struct TurnedChain : Chain {
    template <int rows, int vectors>
    using Words = GroupWords<TurnedDraws<rows, vectors>, rows, vectors>;
};

// The right operand is float16 as it lies in memory, or turned; b_k counts its numbers.
template <class C>
struct HalfLanes : C {
    LP_INLINE static f32v b_vector(const float *b, i64 at) {
        return half_to_real(load<u16v>(reinterpret_cast<const u16 *>(b) + at));
    }
};

// With any step, and with those of which `has_turned_kernel` holds.
template <class C>
KernelOf<C> chosen_kernel(Path path, int rows, int vectors, bool exact);
inline bool has_turned_kernel(Path path) { return path == Path::grid_stochastic || path == Path::aligned_stochastic; }
inline bool has_half_kernel(Path path) {
    return has_half && (path == Path::none || path == Path::half_nearest || path == Path::grid_stochastic);
}

// The same contract with another order inside a group (`dot4`, `pairwise`, `aligned`), for the chains of one part.
void adder_kernel(Adder adder, const Chain &chain, const Rounders &rounders, int rows, int vectors, const float *a,
                  const float *b, float *to);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
