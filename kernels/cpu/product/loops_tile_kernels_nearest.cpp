// Tile kernels without rounding and with the fast nearest-even roundings.
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

Kernel nearest_kernel(Path path, int rows, int vectors, bool along_k, bool exact) {
    switch (path) {
        case Path::none:
            return kernel_of<NoStep>(rows, vectors, along_k, exact);
#if defined(__F16C__)
        case Path::half_nearest:
            return kernel_of<HalfNearest<false>>(rows, vectors, along_k, exact);
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
        case Path::half_bounded:
            return kernel_of<HalfBounded>(rows, vectors, along_k, exact);
#endif
        case Path::half_checked:
            return kernel_of<HalfNearest<true>>(rows, vectors, along_k, exact);
#endif
        case Path::aligned_nearest:
            return kernel_of<AlignedStep<false>>(rows, vectors, along_k, exact);
        default:
            return kernel_of<GridNearest>(rows, vectors, along_k, exact);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
