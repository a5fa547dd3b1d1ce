// The kernels of window tiles, by step and rows.
#include "windows/window_chain.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

template <class Step, bool exact>
WindowKernel kernel_of_rows(int rows) {
    return rows == window_rows ? window_kernel<Step, window_rows, exact> : window_kernel<Step, window_rows / 2, exact>;
}

// Without a fused instruction, operands whose products are exact have kernels of their own.
template <class Step>
WindowKernel kernel_of_step(int rows, bool exact) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) return kernel_of_rows<Step, true>(rows);
#endif
    (void)exact;
    return kernel_of_rows<Step, false>(rows);
}

}  // namespace

WindowKernel window_kernel_of(Path path, int rows, bool exact) {
    switch (path) {
        case Path::none:
            return kernel_of_step<NoStep>(rows, exact);
#if defined(__F16C__)
        case Path::half_nearest:
            return kernel_of_step<HalfNearest<false>>(rows, exact);
        case Path::half_checked:
            return kernel_of_step<HalfNearest<true>>(rows, exact);
#endif
        case Path::grid_nearest:
            return kernel_of_step<GridNearest>(rows, exact);
        case Path::grid_stochastic:
            return kernel_of_step<GridStochastic>(rows, exact);
        case Path::aligned_nearest:
            return kernel_of_step<AlignedStep<false>>(rows, exact);
        case Path::aligned_stochastic:
            return kernel_of_step<AlignedStep<true>>(rows, exact);
        case Path::any_random:
            return kernel_of_step<AnyStep<true>>(rows, exact);
        default:
            return kernel_of_step<AnyStep<false>>(rows, exact);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
