// A vector of floats as two of doubles.
#ifndef LOWPREC_DOUBLES_H
#define LOWPREC_DOUBLES_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

struct Doubles {
    f64v part[2];
};

LP_INLINE Doubles doubles(f32v x) {
    f32_pair half[2];
    __builtin_memcpy(half, &x, sizeof x);
    return {{__builtin_convertvector(half[0], f64v), __builtin_convertvector(half[1], f64v)}};
}

LP_INLINE f32v floats(const Doubles &x) {
    const f32_pair half[2] = {__builtin_convertvector(x.part[0], f32_pair),
                              __builtin_convertvector(x.part[1], f32_pair)};
    return load<f32v>(half);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
