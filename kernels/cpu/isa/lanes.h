// Vectors of floats on the CPU: loads, stores, the fused multiply-add, and decoding 16-bit storage.
#ifndef LOWPREC_LANES_H
#define LOWPREC_LANES_H

#include "lowprec/bits.h"
#if defined(__x86_64__)
// gcc 12 reports its own intrinsics' deliberately undefined operands.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#if defined(__AVX__)
#include <immintrin.h>
#else
#include <emmintrin.h>  // the whole takes a third of a second to read
#endif
#pragma GCC diagnostic pop
#endif

namespace lowprec {
inline namespace LP_ISA {

constexpr int lanes32 = LP_VECTOR_BYTES / 4;
typedef u16 u16v __attribute__((vector_size(LP_VECTOR_BYTES / 2)));  // as many as f32v has floats
typedef float f32_pair __attribute__((vector_size(LP_VECTOR_BYTES / 2)));

template <class V>
LP_INLINE V load(const void *from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
LP_INLINE void store(void *to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Subtracting +0 keeps -0, and compiles to a broadcast.
LP_INLINE f32v splat_real(float x) { return x - f32v{}; }

// Results have one NaN, positive and quiet, whatever the processor makes of those it meets.
LP_INLINE f32v with_one_nan(f32v x) {
    const f32v nan = bit_cast<f32v>(u32v{} + 0x7fc00000u);
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    const __m512i nan_for_both_kinds = _mm512_set1_epi32(0x11111100);  // else x, by the class of x
    return (f32v)_mm512_fixupimm_ps((__m512)nan, (__m512)x, nan_for_both_kinds, 0);
#else
    return x == x ? x : nan;
#endif
}
LP_INLINE f64v with_one_nan(f64v x) { return x == x ? x : bit_cast<f64v>(u64v{} + (u64(0x7ff8) << 48)); }
LP_INLINE float with_one_nan(float x) { return x == x ? x : bit_cast<float>(0x7fc00000u); }
LP_INLINE double with_one_nan(double x) { return x == x ? x : bit_cast<double>(u64(0x7ff8) << 48); }

// The first `count` <= lanes32 elements, 0 behind them; nothing beyond them is read.
template <class V>
LP_INLINE V load_some(const void *from, long count) {
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
    const unsigned mask = count >= lanes32 ? 0xffffu : (1u << count) - 1;
    if constexpr (sizeof(V) == 64) {
        return (V)_mm512_maskz_loadu_epi32((__mmask16)mask, from);
    } else {
        return (V)_mm256_maskz_loadu_epi16((__mmask16)mask, from);
    }
#else
    V v = {};
    __builtin_memcpy(&v, from, count * (sizeof(V) / lanes32));
    return v;
#endif
}

// The first `count` < lanes32 elements of 4 or 2 bytes; nothing beyond them is written.
template <class V>
LP_INLINE void store_some(void *to, V v, long count) {
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
    const __mmask16 mask = __mmask16((1u << count) - 1);
    if constexpr (sizeof(V) == 64) {
        _mm512_mask_storeu_epi32(to, mask, (__m512i)v);
    } else {
        _mm256_mask_storeu_epi16(to, mask, (__m256i)v);
    }
#else
    constexpr int bytes = sizeof(V) / lanes32;
    char elements[sizeof(V)];
    __builtin_memcpy(elements, &v, sizeof v);
    for (long i = 0; i < count; ++i) __builtin_memcpy((char *)to + i * bytes, elements + i * bytes, bytes);
#endif
}

// Whether any bit is set.
template <class L>
LP_INLINE bool any_set(L bits) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    if constexpr (Lanes<L>::count == 16) return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits) != 0;
    return _mm512_test_epi64_mask((__m512i)bits, (__m512i)bits) != 0;
#elif defined(__AVX2__) && LP_VECTOR_BYTES == 32
    return !_mm256_testz_si256((__m256i)bits, (__m256i)bits);
#else
    typename Lanes<L>::element any = 0;
    for (int lane = 0; lane < Lanes<L>::count; ++lane) any |= bits[lane];
    return any != 0;
#endif
}

// The lanes of which any bit is set, as bits.
LP_INLINE u32 lanes_set(u32v bits) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits);
#elif defined(__AVX2__) && LP_VECTOR_BYTES == 32
    return u32(_mm256_movemask_ps((__m256)(bits != 0)));
#elif defined(__SSE2__)
    return u32(_mm_movemask_ps((__m128)(bits != 0)));
#else
    u32 set = 0;
    for (int lane = 0; lane < lanes32; ++lane) set |= u32(bits[lane] != 0) << lane;
    return set;
#endif
}

// Rounds the exact sum a + b to odd: rounding that to fewer bits, by two or more, is then one correct rounding of a +
// b.
template <class D, class U>
LP_INLINE D add_to_odd(D a, D b) {
    constexpr int sign_position = 8 * sizeof(typename Lanes<U>::element) - 1;
    const D sum = a + b, b_part = sum - a;
    const D error = (a - (sum - b_part)) + (b - b_part);
    const U bits = bit_cast<U>(sum);
    // Towards the error by one step where the sum is inexact and even; away from zero if both have the same sign.
    const U away = ((bits ^ bit_cast<U>(error)) >> sign_position) == 0 ? U{} + 1 : U{} - 1;
    const U odd = (bits & 1) == 0 ? bits + away : bits;
    return error < D{} || error > D{} ? bit_cast<D>(odd) : sum;
}

// a * b + c, rounded once. a * b is exact in double, so without the instruction two doubles per lane do it.
LP_INLINE f32v fused(f32v a, f32v b, f32v c) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && LP_VECTOR_BYTES == 32
    return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    for (int i = 0; i < lanes32; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    f32_pair part[3][2];
    __builtin_memcpy(part[0], &a, sizeof a);
    __builtin_memcpy(part[1], &b, sizeof b);
    __builtin_memcpy(part[2], &c, sizeof c);
    for (int i = 0; i < 2; ++i) {
        const f64v product = __builtin_convertvector(part[0][i], f64v) * __builtin_convertvector(part[1][i], f64v);
        const f64v sum = add_to_odd<f64v, u64v>(__builtin_convertvector(part[2][i], f64v), product);
        part[2][i] = __builtin_convertvector(sum, f32_pair);
    }
    __builtin_memcpy(&c, part[2], sizeof c);
    return c;
#endif
}

// IEEE binary16 bits to float.
LP_INLINE f32v half_to_real(u16v h) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (f32v)_mm512_maskz_cvtph_ps((__mmask16)-1, (__m256i)h);
#elif defined(__F16C__) && LP_VECTOR_BYTES == 32
    return (f32v)_mm256_cvtph_ps((__m128i)h);
#else
    const u32v wide = __builtin_convertvector(h, u32v), code = wide & 0x7fffu;
    const u32v normal = (code << 13) + 0x38000000u;
    const f32v small = bit_cast<f32v>(code + 0x4b000000u) - 8388608.0f;  // the code as a number of units 2^-24
    u32v bits = code < 0x400u ? bit_cast<u32v>(small * 0x1p-24f) : normal;
    bits = code >= 0x7c00u ? (code << 13) + 0x70000000u : bits;
    return bit_cast<f32v>(bits | ((wide & 0x8000u) << 16));
#endif
}

// Float to IEEE binary16 bits, nearest-even, where there is an instruction for it.
#if defined(__F16C__)
constexpr bool has_half = true;
LP_INLINE u16v real_to_half(f32v x) {
#if LP_VECTOR_BYTES == 64
    return (u16v)_mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    return (u16v)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#endif
}
#else
constexpr bool has_half = false;
LP_INLINE u16v real_to_half(f32v) { return u16v{}; }  // never called
#endif

LP_INLINE f32v bfloat_to_real(u16v b) { return bit_cast<f32v>(__builtin_convertvector(b, u32v) << 16); }

}  // namespace LP_ISA
}  // namespace lowprec
#endif
