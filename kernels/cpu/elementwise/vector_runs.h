// An operation on vectors over arrays of floats.
#ifndef LOWPREC_VECTOR_RUNS_H
#define LOWPREC_VECTOR_RUNS_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

// How many elements to take by themselves so that the results after them are stored in whole cache lines: numpy's
// arrays begin 16 bytes into one, and sums in the caches took a tenth to a sixth longer by stores across two.
LP_INLINE i64 elements_before_line(const void *to, i64 bytes, i64 count) {
    const i64 before = (-reinterpret_cast<i64>(to) & (LP_VECTOR_BYTES - 1)) / bytes;
    return count < 8 * lanes32 ? 0 : before;
}

// to[i] = f(a[i], b[i], c[i]).
template <class F>
LP_INLINE void run_vectors(const F &f, const float *a, const float *b, const float *c, float *to, i64 count) {
    const auto some = [&](i64 i, i64 length) {
        const f32v x = load_some<f32v>(a + i, length), y = load_some<f32v>(b + i, length);
        store_some(to + i, f(x, y, load_some<f32v>(c + i, length)), length);
    };
    i64 i = elements_before_line(to, sizeof(float), count);
    if (i) some(0, i);
    for (; i + lanes32 <= count; i += lanes32)
        store(to + i, f(load<f32v>(a + i), load<f32v>(b + i), load<f32v>(c + i)));
    if (i < count) some(i, count - i);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
