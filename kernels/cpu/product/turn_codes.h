// Squares of 16-bit codes turned about their diagonals, in registers.
#ifndef LOWPREC_TURN_CODES_H
#define LOWPREC_TURN_CODES_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64

// Sixteen lines of sixteen codes, `stride` bytes apart. Vectors of 32 bytes, for whose halves loads take no shuffle.
LP_INLINE void turn_lines(const char *from, long stride, u16v (&turned)[16]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {  // eight codes: squares of eight in both halves of vectors
        __m256i a[8], b[8];
        for (int i = 0; i < 8; ++i) {
            const char *line = from + i * stride + 16 * half;
            const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i *>(line));
            const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i *>(line + 8 * stride));
            a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
        }
        for (int i = 0; i < 8; i += 2) {
            b[i] = _mm256_unpacklo_epi16(a[i], a[i + 1]);
            b[i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int h = 0; h < 2; ++h) {
                a[i + 2 * h] = _mm256_unpacklo_epi32(b[i + h], b[i + h + 2]);
                a[i + 2 * h + 1] = _mm256_unpackhi_epi32(b[i + h], b[i + h + 2]);
            }
        for (int i = 0; i < 4; ++i) {
            turned[8 * half + 2 * i] = (u16v)_mm256_unpacklo_epi64(a[i], a[i + 4]);
            turned[8 * half + 2 * i + 1] = (u16v)_mm256_unpackhi_epi64(a[i], a[i + 4]);
        }
    }
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
