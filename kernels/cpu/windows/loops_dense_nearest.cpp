// Tiles of convolutions with few channels, without rounding and with the fast nearest-even roundings.
#include "windows/dense_chain.h"

namespace lowprec {
inline namespace LP_ISA {

template <class C>
KernelOf<C> dense_nearest_kernel(Path path, int height, int vectors, bool exact) {
    switch (path) {
        case Path::none:
            return dense_kernel_of<NoStep, C>(height, vectors, exact);
#if defined(__F16C__)
        case Path::half_nearest:
            return dense_kernel_of<HalfNearest<false>, C>(height, vectors, exact);
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
        case Path::half_bounded:
            return dense_kernel_of<HalfBounded, C>(height, vectors, exact);
#endif
        case Path::half_checked:
            return dense_kernel_of<HalfNearest<true>, C>(height, vectors, exact);
#endif
        case Path::aligned_nearest:
            return dense_kernel_of<AlignedStep<false>, C>(height, vectors, exact);
        default:
            return dense_kernel_of<GridNearest, C>(height, vectors, exact);
    }
}

template KernelOf<OutputLanes> dense_nearest_kernel<OutputLanes>(Path, int, int, bool);
template KernelOf<WindowLanes> dense_nearest_kernel<WindowLanes>(Path, int, int, bool);

}  // namespace LP_ISA
}  // namespace lowprec
