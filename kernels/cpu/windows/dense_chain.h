// Register tiles of convolutions with few channels: chains whose terms are read where an image lies, decoded.
#ifndef LOWPREC_DENSE_CHAIN_H
#define LOWPREC_DENSE_CHAIN_H

#include "accumulate/turned_words.h"
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

// Rows of a tile are windows, lanes are outputs.
struct OutputLanes : Chain {
    const i64 *terms;  // where they are, in floats from those of the first product
    LP_INLINE i64 a_at(i64 k) const { return terms[k]; }
};

// Rows of a tile are outputs, lanes are neighbouring windows.
struct WindowLanes : Chain {
    const i64 *terms;
    template <int rows, int vectors>
    using Words = GroupWords<TurnedDraws<rows, vectors>, rows, vectors>;
    LP_INLINE i64 b_at(i64 k) const { return terms[k]; }
};

constexpr int dense_heights = 3,
              dense_rows[dense_heights] = {tile_rows, tile_rows * 3 / 4, tile_rows / 2};  // of a tile

// The least of them for so many rows, or the first.
inline int dense_height(i64 rows) { return rows > dense_rows[1] ? 0 : rows > dense_rows[2] ? 1 : 2; }

template <class Step, class C, bool exact>
KernelOf<C> dense_kernel_of_height(int height, int vectors) {
    if (height == 0) return kernel_of_rows<Step, dense_rows[0], exact, C>(vectors);
    return height == 1 ? kernel_of_rows<Step, dense_rows[1], exact, C>(vectors)
                       : kernel_of_rows<Step, dense_rows[2], exact, C>(vectors);
}

template <class Step, class C>
KernelOf<C> dense_kernel_of(int height, int vectors, bool exact) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) return dense_kernel_of_height<Step, C, true>(height, vectors);
#endif
    (void)exact;
    return dense_kernel_of_height<Step, C, false>(height, vectors);
}

template <class C>
KernelOf<C> dense_nearest_kernel(Path path, int height, int vectors, bool exact);
template <class C>
KernelOf<C> dense_other_kernel(Path path, int height, int vectors, bool exact);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
