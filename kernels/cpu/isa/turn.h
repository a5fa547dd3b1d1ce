// A square of floats turned about its diagonal, in registers.
#ifndef LOWPREC_TURN_H
#define LOWPREC_TURN_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

// Ever smaller blocks beside it change places.
LP_INLINE void turn(f32v (&m)[lanes32]) {
#pragma GCC unroll 4
    for (int h = lanes32 / 2; h > 0; h /= 2) {
        i32v first, second;
        for (int l = 0; l < lanes32; ++l) {
            first[l] = l & h ? lanes32 + l - h : l;
            second[l] = l & h ? lanes32 + l : l + h;
        }
#pragma GCC unroll 16
        for (int i = 0; i < lanes32; ++i)
            if (!(i & h)) {
                const f32v a = m[i], b = m[i + h];
                m[i] = __builtin_shuffle(a, b, first);
                m[i + h] = __builtin_shuffle(a, b, second);
            }
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
