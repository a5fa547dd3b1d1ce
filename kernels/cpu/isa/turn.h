// Squares of numbers turned about their diagonals, in registers.
#ifndef LOWPREC_TURN_H
#define LOWPREC_TURN_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

// A square of vectors: ever smaller blocks beside its diagonal change places.
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

// Four vectors as lines of four numbers each, and back: line l then is number l / 4 of vector l % 4.
LP_INLINE void turn_fours(u32v (&m)[4]) {
    i32v low, high, low_pairs, high_pairs;
    for (int l = 0; l < lanes32; ++l) {
        const int block = l / 4 * 4, place = l % 4;
        low[l] = block + place / 2 + place % 2 * lanes32;
        high[l] = low[l] + 2;
        low_pairs[l] = block + place % 2 + place / 2 * lanes32;
        high_pairs[l] = low_pairs[l] + 2;
    }
    const u32v a = __builtin_shuffle(m[0], m[1], low), b = __builtin_shuffle(m[0], m[1], high);
    const u32v c = __builtin_shuffle(m[2], m[3], low), d = __builtin_shuffle(m[2], m[3], high);
    m[0] = __builtin_shuffle(a, c, low_pairs);
    m[1] = __builtin_shuffle(a, c, high_pairs);
    m[2] = __builtin_shuffle(b, d, low_pairs);
    m[3] = __builtin_shuffle(b, d, high_pairs);
}

// Lines of 16 bytes, as turn_fours leaves them or takes them.
struct FourLines {
    alignas(64) char vector[4][LP_VECTOR_BYTES];

    char *line(i64 l) { return vector[l % 4] + l / 4 * 16; }
};

// Up to 16 bytes, an even number, by moves of fixed sizes.
LP_INLINE void copy_few(char *to, const char *from, i64 bytes) {
    if (bytes == 16) {
        __builtin_memcpy(to, from, 16);
    } else if (bytes >= 8) {
        __builtin_memcpy(to, from, 8);
        __builtin_memcpy(to + bytes - 8, from + bytes - 8, 8);
    } else if (bytes >= 4) {
        __builtin_memcpy(to, from, 4);
        __builtin_memcpy(to + bytes - 4, from + bytes - 4, 4);
    } else {
        __builtin_memcpy(to, from, 2);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
