// Tile kernels without rounding and with the fast nearest-even roundings.
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

Kernel nearest_kernel(Path path, int rows, int vectors, bool exact) {
    switch (path) {
        case Path::none:
            return kernel_of<NoStep>(rows, vectors, exact);
#if defined(__F16C__)
        case Path::half_nearest:
            return kernel_of<HalfNearest<false>>(rows, vectors, exact);
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
        case Path::half_bounded:
            return kernel_of<HalfBounded>(rows, vectors, exact);
#endif
        case Path::half_checked:
            return kernel_of<HalfNearest<true>>(rows, vectors, exact);
#endif
        case Path::aligned_nearest:
            return kernel_of<AlignedStep<false>>(rows, vectors, exact);
        default:
            return kernel_of<GridNearest>(rows, vectors, exact);
    }
}

template <>
Kernel chosen_kernel<Chain>(Path path, int rows, int vectors, bool exact) {
    switch (path) {
        case Path::grid_stochastic:
        case Path::aligned_stochastic:
            return stochastic_kernel(path, rows, vectors, exact);
        case Path::any:
        case Path::any_random:
            return general_kernel(path, rows, vectors, exact);
        default:
            return nearest_kernel(path, rows, vectors, exact);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
