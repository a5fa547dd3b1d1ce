// Ways that give the bits of slower ones beside them. Each can be switched off, to see what it brings (`make bench
// ARGS=ablation`) and that no bit hangs on it; LOWPREC_WITHOUT names those that are off from the beginning.
#ifndef LOWPREC_FAST_PATHS_H
#define LOWPREC_FAST_PATHS_H

#include "lowprec/bits.h"

namespace lowprec {

// clang-format off
#define LP_FAST_PATHS(X)                                                                                          \
    X(top_panels) X(fast_panels) X(machine_conversions) X(brackets) X(pieces) X(short_functions)                  \
    X(narrow_arithmetic) X(strips) X(bounded_sums) X(dense_windows) X(narrow_windows) X(thin_convolution)         \
    X(pipelines)
// clang-format on

#define LP_NAME(name) name,
enum class FastPath { LP_FAST_PATHS(LP_NAME) };
#undef LP_NAME

inline u32 fast_paths_off = 0;  // bits, by number

LP_INLINE bool takes(FastPath path) { return !(__atomic_load_n(&fast_paths_off, __ATOMIC_RELAXED) >> u32(path) & 1); }

}  // namespace lowprec
#endif
