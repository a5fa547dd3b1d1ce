// What functions in float32 lanes are made of: bounds, signs and polynomials.
#ifndef LOWPREC_REAL_LANES_H
#define LOWPREC_REAL_LANES_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

// Fused where there is an instruction for it; elsewhere rounded twice.
LP_INLINE f32v mul_add(f32v a, f32v b, f32v c) {
#if defined(__FMA__) || defined(__aarch64__)
    return fused(a, b, c);
#else
    return a * b + c;
#endif
}

// Horner's rule, coefficients given highest first.
LP_INLINE f32v series(f32v, f32v total) { return total; }
template <class... Rest>
LP_INLINE f32v series(f32v x, f32v total, float next, Rest... rest) {
    return series(x, mul_add(total, x, splat_real(next)), rest...);
}
template <class... Rest>
LP_INLINE f32v polynomial(f32v x, float first, Rest... rest) {
    return series(x, splat_real(first), rest...);
}

LP_INLINE f32v size_of(f32v x) { return bit_cast<f32v>(bit_cast<u32v>(x) & 0x7fffffffu); }
LP_INLINE f32v with_sign_of(f32v x, f32v sign) {
    return bit_cast<f32v>(bit_cast<u32v>(x) | (bit_cast<u32v>(sign) & 0x80000000u));
}

// NaN stays in all three, and so does a zero that equals the limit.
LP_INLINE f32v at_most(f32v x, float limit) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (f32v)_mm512_maskz_min_ps((__mmask16)-1, _mm512_set1_ps(limit), (__m512)x);
#elif defined(__AVX__) && LP_VECTOR_BYTES == 32
    return (f32v)_mm256_min_ps(_mm256_set1_ps(limit), (__m256)x);
#else
    return x > splat_real(limit) ? splat_real(limit) : x;
#endif
}
LP_INLINE f32v at_least(f32v x, float limit) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (f32v)_mm512_maskz_max_ps((__mmask16)-1, _mm512_set1_ps(limit), (__m512)x);
#elif defined(__AVX__) && LP_VECTOR_BYTES == 32
    return (f32v)_mm256_max_ps(_mm256_set1_ps(limit), (__m256)x);
#else
    return x < splat_real(limit) ? splat_real(limit) : x;
#endif
}
LP_INLINE f32v between(f32v x, float low, float high) { return at_most(at_least(x, low), high); }

constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;

}  // namespace LP_ISA
}  // namespace lowprec
#endif
