// Sixteen float32 values to codes at the top of their lanes. The bits are those of round.h.
//
// For c = min(|x|, clamp) the sum c + max(c, 2^emin), rounded toward zero, is 2c for a normal value, and for a
// subnormal one c in the place it has beside 2^emin: less the bits of 2^emin, both are the code and below it the
// discarded bits. So one integer addition brings in the new exponent and the random bits, or whatever else the mode
// adds below the code, and the code is whole bytes at the top of the lane, where a permutation picks it up. Where the
// mode must know of bits that the sum lost, the sum is rounded both ways: its last bit is then set if it is not exact.
//
// Two things are left to other panels: NaN (and everything beyond the largest value, unless all of it becomes one
// magnitude), and in stochastic rounding nonzero subnormals of formats of more than 7 mantissa bits, whose place
// beside 2^emin has fewer fraction bits than there are random ones. Formats with float32's exponents need no sum.
#ifndef LOWPREC_TOP_LANES_H
#define LOWPREC_TOP_LANES_H

#include "isa/lanes.h"
#include "rounding/top_panels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// Whole bytes; codes below the significand's place, which shifts right; whether -0 exists.
template <int mode_, int way_, int end_, bool full_, bool right_, bool negative_zero_>
struct TopShape {
    static constexpr int mode = mode_, way = way_, end = end_;
    static constexpr bool full = full_, right = right_, negative_zero = negative_zero_;
};

template <class T>
LP_INLINE __m512i constant(T value) {
    return sizeof(T) == 4 ? _mm512_set1_epi32(int(value)) : _mm512_set1_epi16(short(value));
}

// Vectors that stay in registers through a panel.
struct Constants {
    __m512i clamp, limit, smallest, base, shift, sign_shift, sign, code, unit, discarded, low, high, fractions;
    __m512i exponent, unit_sum, to_top;  // of nearest_byte
};

// Positions of a half-word's bytes below the code: the code has the lane's upper 16 or its top 8 bits.
template <class Out>
LP_INLINE __m512i half_word_bytes(int half) {
    alignas(64) u8 from[64];
    for (int i = 0; i < 64; ++i) {
        const int byte = i & 3, first = sizeof(Out) == 2 ? 0 : 1;
        from[i] = u8((i & 12) + 2 * half + ((byte - first) & 1));
    }
    return _mm512_load_si512(from);
}

template <class Out, int half>
LP_INLINE __m512i random_below(__m512i words, const Constants &k) {
    if (sizeof(Out) == 2 && half == 0) return _mm512_mask_blend_epi16(0x55555555, k.base, words);
    const __mmask64 bytes = sizeof(Out) == 2 ? 0x3333333333333333ull : 0x6666666666666666ull;
    return _mm512_mask_shuffle_epi8(k.base, bytes, words, half ? k.high : k.low);
}

// c beside 2^emin, or at its own place; lost bits are in the last one where the mode asks for them.
template <class Shape>
LP_INLINE __m512i place(__m512i c, __mmask16 upward, const Constants &k) {
    if (Shape::way == aligned) return c;
    constexpr int toward_0 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC, away = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    const __m512 a = (__m512)c, b = (__m512)_mm512_max_epu32(c, k.smallest);
    const __m512 y = _mm512_add_round_ps(a, b, toward_0);
    if (Shape::mode == up || Shape::mode == down) return (__m512i)_mm512_mask_add_round_ps(y, upward, a, b, away);
    if (Shape::mode != nearest_even && Shape::mode != odd) return (__m512i)y;
    const __m512i last = _mm512_set1_epi32(1), beyond = (__m512i)_mm512_add_round_ps(a, b, away);
    return _mm512_ternarylogic_epi32((__m512i)y, beyond, last, 0xF8);  // y | (beyond & last)
}

// The code above the discarded bits -> the rounded code there; what is below it no longer counts.
template <class Out, class Shape, int half>
LP_INLINE __m512i round_placed(__m512i y, __m512i words, __mmask16 upward, const Constants &k) {
    if (Shape::mode == stochastic) return _mm512_add_epi32(y, random_below<Out, half>(words, k));
    const __m512i sum = _mm512_add_epi32(y, k.base);
    if (Shape::mode == nearest_even) {
        const __m512i parity = _mm512_srli_epi32(y, sizeof(Out) == 2 ? 16 : 24);
        return _mm512_add_epi32(sum, _mm512_and_si512(parity, _mm512_set1_epi32(1)));
    }
    if (Shape::mode == odd) return _mm512_mask_or_epi32(sum, _mm512_test_epi32_mask(sum, k.discarded), sum, k.unit);
    if (Shape::mode == up || Shape::mode == down) return _mm512_mask_add_epi32(sum, upward, sum, k.discarded);
    return sum;
}

// What is left of a sum above the discarded bits, with the sign of x.
template <class Shape>
LP_INLINE __m512i with_sign(__m512i sum, __m512i x, const Constants &k) {
    const __m512i sign = Shape::full ? x : _mm512_srlv_epi32(x, k.sign_shift);
    if (Shape::negative_zero) return _mm512_ternarylogic_epi32(k.sign, sign, sum, 0xCA);  // sign where k.sign
    const __m512i code = _mm512_and_si512(sum, k.code);
    return _mm512_mask_ternarylogic_epi32(code, _mm512_test_epi32_mask(code, code), sign, k.sign, 0xF8);
}

// Nearest-even to bytes in one sum. For 2^E = the power of two at or below max(c, 2^emin), c beside 2^E * 2^(23 - M)
// ends at the format's last place, so that the hardware's addition rounds it there: the sum's last bits count c in
// units of 2^(E - M), and its exponent field tells E. One product brings that field beside the count, at the top of the
// lane; what the field is too large by was added to the count, an even number since M > 0, so that ties go where they
// should.
template <class Shape>
LP_INLINE __m512i nearest_byte(__m512i x, const Constants &k, __mmask16 &plain) {
    const __m512 clamped = _mm512_range_ps((__m512)x, (__m512)k.clamp, 2 | 8);
    if (Shape::end == to_nan) plain = _mm512_mask_cmp_ps_mask(plain, clamped, (__m512)k.limit, _CMP_LE_OQ);
    const __m512i power = _mm512_and_si512(_mm512_max_epu32((__m512i)clamped, k.smallest), k.exponent);
    const __m512 sum = _mm512_fmadd_round_ps((__m512)power, (__m512)k.unit_sum, clamped,
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return with_sign<Shape>(_mm512_mullo_epi32((__m512i)sum, k.to_top), x, k);
}

template <class Out, class Shape>
constexpr bool to_nearest_byte = sizeof(Out) == 1 && Shape::mode == nearest_even && Shape::way == scaled;

// Where `whole`, subnormal values keep all bits that count: they are counted in integers.
template <class Out, class Shape, int half, bool whole>
LP_INLINE __m512i round_at_top(__m512i x, __m512i words, const Constants &k, __mmask16 &plain) {
    const __m512 clamped = _mm512_range_ps((__m512)x, (__m512)k.clamp, 2 | 8);  // least magnitude, sign cleared
    if (Shape::end == to_nan) plain = _mm512_mask_cmp_ps_mask(plain, clamped, (__m512)k.limit, _CMP_LE_OQ);
    __mmask16 upward = 0;  // lanes whose magnitude is rounded up
    if (Shape::mode == down) upward = _mm512_movepi32_mask(x);
    if (Shape::mode == up) upward = __mmask16(~_mm512_movepi32_mask(x));
    __m512i y = place<Shape>((__m512i)clamped, upward, k);
    if (Shape::right) y = _mm512_srlv_epi32(y, k.shift);
    if (!Shape::right && Shape::way == scaled) y = _mm512_sllv_epi32(y, k.shift);
    if (whole && Shape::way == scaled) {
        const __mmask16 small = _mm512_cmp_ps_mask(clamped, (__m512)k.smallest, _CMP_LT_OQ);
        const __m512i count = _mm512_cvttps_epi32(_mm512_mul_ps(clamped, (__m512)k.fractions));
        y = _mm512_mask_sub_epi32(y, small, count, k.base);
    }
    return with_sign<Shape>(round_placed<Out, Shape, half>(y, words, upward, k), x, k);
}

template <class Out>
LP_INLINE Constants make_constants(const TopRounder &k) {
    const u32 code_bits = sizeof(Out) == 2 ? 0xffff0000u : 0xff000000u;
    return {constant(k.clamp),
            constant(k.limit),
            constant(k.smallest),
            constant(k.base),
            constant(u32(k.left ? k.left : k.right)),
            constant(u32(k.sign_shift)),
            constant(k.sign),
            constant(code_bits & ~k.sign),
            constant(u32(1) << (32 - 8 * int(sizeof(Out)))),
            constant(~code_bits),
            half_word_bytes<Out>(0),
            half_word_bytes<Out>(1),
            constant(k.fractions),
            constant(0x7f800000u),
            constant(k.unit_sum),
            constant(k.to_top)};
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
