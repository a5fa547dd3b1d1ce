// Tiles of convolutions with few channels, with stochastic roundings and with those of any format.
#include "windows/dense_chain.h"

namespace lowprec {
inline namespace LP_ISA {

template <class C>
KernelOf<C> dense_other_kernel(Path path, int height, int vectors, bool exact) {
    switch (path) {
        case Path::grid_stochastic:
            return dense_kernel_of<GridStochastic, C>(height, vectors, exact);
        case Path::aligned_stochastic:
            return dense_kernel_of<AlignedStep<true>, C>(height, vectors, exact);
        case Path::any_random:
            return dense_kernel_of<AnyStep<true>, C>(height, vectors, exact);
        default:
            return dense_kernel_of<AnyStep<false>, C>(height, vectors, exact);
    }
}

template KernelOf<OutputLanes> dense_other_kernel<OutputLanes>(Path, int, int, bool);
template KernelOf<WindowLanes> dense_other_kernel<WindowLanes>(Path, int, int, bool);

}  // namespace LP_ISA
}  // namespace lowprec
