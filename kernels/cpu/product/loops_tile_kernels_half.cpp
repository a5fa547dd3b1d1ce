// Tile kernels that read float16 where it lies, with the steps that such operands mostly have.
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__F16C__)
template <>
KernelOf<HalfLanes<Chain>> chosen_kernel<HalfLanes<Chain>>(Path path, int rows, int vectors, bool exact) {
    typedef HalfLanes<Chain> Half;
    switch (path) {
        case Path::half_nearest:
            return kernel_of<HalfNearest<false>, Half>(rows, vectors, exact);
        case Path::grid_stochastic:
            return kernel_of<GridStochastic, Half>(rows, vectors, exact);
        case Path::none:
            return kernel_of<NoStep, Half>(rows, vectors, exact);
        default:
            return nullptr;
    }
}
#else
template <>
KernelOf<HalfLanes<Chain>> chosen_kernel<HalfLanes<Chain>>(Path, int, int, bool) {
    return nullptr;
}
#endif

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
template <>
KernelOf<HalfLanes<TurnedChain>> chosen_kernel<HalfLanes<TurnedChain>>(Path path, int rows, int vectors, bool exact) {
    if (path == Path::grid_stochastic) return kernel_of<GridStochastic, HalfLanes<TurnedChain>>(rows, vectors, exact);
    return nullptr;
}
#else
template <>
KernelOf<HalfLanes<TurnedChain>> chosen_kernel<HalfLanes<TurnedChain>>(Path, int, int, bool) {
    return nullptr;
}
#endif

}  // namespace LP_ISA
}  // namespace lowprec
