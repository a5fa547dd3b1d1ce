// Squares of 16-bit codes turned about their diagonals, in registers.
#ifndef LOWPREC_TURN_CODES_H
#define LOWPREC_TURN_CODES_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64

// Sixteen lines of sixteen codes: two lines to a register, squares of eight are turned in each quarter of it, and
// quarters then belong to codes i and i + 8.
LP_INLINE void turn(u16v (&m)[16]) {
    __m512i a[8], b[8];
    for (int i = 0; i < 8; ++i)
        a[i] = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)m[i]), (__m256i)m[i + 8], 1);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; ++h) {
            a[i + 2 * h] = _mm512_unpacklo_epi32(b[i + h], b[i + h + 2]);
            a[i + 2 * h + 1] = _mm512_unpackhi_epi32(b[i + h], b[i + h + 2]);
        }
    for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm512_unpacklo_epi64(a[i], a[i + 4]);
        b[2 * i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 4]);
    }
    for (int i = 0; i < 8; ++i) {
        const __m512i both = _mm512_shuffle_i64x2(b[i], b[i], 0xd8);  // quarters 0, 2, 1, 3
        m[i] = (u16v)_mm512_castsi512_si256(both);
        m[i + 8] = (u16v)_mm512_extracti64x4_epi64(both, 1);
    }
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
