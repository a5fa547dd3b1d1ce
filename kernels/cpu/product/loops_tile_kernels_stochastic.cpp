// Tile kernels with the fast stochastic roundings.
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

Kernel stochastic_kernel(Path path, int rows, int vectors, bool exact) {
    if (path == Path::aligned_stochastic) return kernel_of<AlignedStep<true>>(rows, vectors, exact);
    return kernel_of<GridStochastic>(rows, vectors, exact);
}

template <>
KernelOf<TurnedChain> chosen_kernel<TurnedChain>(Path path, int rows, int vectors, bool exact) {
    if (path == Path::aligned_stochastic) return kernel_of<AlignedStep<true>, TurnedChain>(rows, vectors, exact);
    return kernel_of<GridStochastic, TurnedChain>(rows, vectors, exact);
}

}  // namespace LP_ISA
}  // namespace lowprec
