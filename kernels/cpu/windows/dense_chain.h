// Register tiles of convolutions with few channels: chains whose terms are read where an image lies, decoded.
#ifndef LOWPREC_DENSE_CHAIN_H
#define LOWPREC_DENSE_CHAIN_H

#include "product/tile_kernels.h"
#include "windows/turned_words.h"

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

constexpr int dense_rows[2] = {tile_rows, tile_rows / 2};  // of a tile

// `rows` is one of dense_rows.
template <class Step, class C>
KernelOf<C> dense_kernel_of(int rows, int vectors, bool exact) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) {
        return rows == tile_rows ? kernel_of_rows<Step, tile_rows, true, C>(vectors)
                                 : kernel_of_rows<Step, tile_rows / 2, true, C>(vectors);
    }
#endif
    (void)exact;
    return rows == tile_rows ? kernel_of_rows<Step, tile_rows, false, C>(vectors)
                             : kernel_of_rows<Step, tile_rows / 2, false, C>(vectors);
}

template <class C>
KernelOf<C> dense_nearest_kernel(Path path, int rows, int vectors, bool exact);
template <class C>
KernelOf<C> dense_other_kernel(Path path, int rows, int vectors, bool exact);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
