// Functions by pieces with a polynomial each, on AVX-512: around a place near the middle of its piece, where it is
// almost a float, a function is that and a slope known to twice float32's bits, and terms so small that float32 will do
// for them. What these may be off by tells where the result's float32 is certain. That it is so for every float32 is
// known by trying them all (tests/lowprec/test_quick_functions.py).
#ifndef LOWPREC_FUNCTIONS_PIECES_H
#define LOWPREC_FUNCTIONS_PIECES_H

#include "elementwise/piece_tables.h"
#include "elementwise/real_lanes.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// a * b - product and c - a * b, rounded once.
LP_INLINE f32v product_error(f32v a, f32v b, f32v product) {
    return (f32v)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)product);
}
LP_INLINE f32v minus_product(f32v a, f32v b, f32v c) { return (f32v)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }

// The entry that the low five bits of each lane name.
LP_INLINE f32v looked_up(u32v number, const float *table) {
    const __m512 low = _mm512_load_ps(table), high = _mm512_load_ps(table + 16);
    return (f32v)_mm512_permutex2var_ps(low, (__m512i)number, high);
}

// high + low, where `rest` is of the terms beyond the value and the slope, and of their error.
struct InPiece {
    f32v high, low, rest;
};

// For z in [0, 31.5 / per_unit). Differences are exact: of z and a middle as of a value and one near it.
template <int rows>
LP_INLINE InPiece in_piece(f32v z, const float (&table)[rows][32], float per_unit) {
    const u32v i = bit_cast<u32v>(fused(z, splat_real(per_unit), splat_real(to_integer)));
    const f32v d = z - looked_up(i, table[0]), value = looked_up(i, table[1]), slope = looked_up(i, table[2]);
    const f32v high = fused(slope, d, value), lost = fused(slope, d, value - high);
    f32v beyond = looked_up(i, table[rows - 1]);
    for (int row = rows - 2; row >= 3; --row) beyond = fused(beyond, d, looked_up(i, table[row]));
    return {high, fused(beyond, d, lost), beyond * d};
}

// The float32 of high + low where it is the same with any error up to `error`; other lanes are `open`.
LP_INLINE f32v within(f32v high, f32v low, f32v error, u32 &open) {
    const f32v least = high + (low - error), most = high + (low + error);
    open = _mm512_cmp_ps_mask((__m512)least, (__m512)most, _CMP_NEQ_OQ);
    return most;
}

LP_INLINE u32 at_or_beyond(f32v x, float limit) {  // NaN too
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_NLT_UQ);
}
LP_INLINE u32 between_zero_and(f32v x, float limit) {
    const __mmask16 below = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_LT_OQ);
    return _mm512_mask_cmp_ps_mask(below, (__m512)x, _mm512_setzero_ps(), _CMP_NEQ_OQ);
}

struct piece_erf_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const f32v size = size_of(x);
        const InPiece y = in_piece(at_most(size, 0x1.f7fffep+1f), erf_pieces, 8.0f);  // from there on it is 1
        const f32v error = fused(y.rest, splat_real(-0x1.ep-23f), y.high * 0x1.4p-36f);
        const f32v result = within(y.high, y.low, error, open);
        open |= between_zero_and(size, 0x1p-60f);  // errors may be subnormal
        return with_one_nan(with_sign_of(result, x));
    }
};

// max(x, 0) - z * (1 - Phi(z)), z = |x|. NaN is left open.
struct piece_gelu_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const f32v z = size_of(x), upper = at_least(x, 0.0f);
        const InPiece tail = in_piece(z, normal_tail_pieces, 8.0f);
        const f32v high = minus_product(z, tail.high, upper);
        const f32v low = minus_product(z, tail.low, minus_product(z, tail.high, upper - high));
        const f32v error = z * fused(tail.rest, splat_real(0x1.2p-22f), tail.high * 0x1.4p-36f);
        const f32v result = within(high, low, error, open);
        open |= at_or_beyond(z, 3.9375f) | between_zero_and(z, 0x1p-99f);
        return with_sign_of(result, x);  // of zero too
    }
};

// 1 - 1 / (1 + exp(z)) or that without the one, z = |x|. NaN is left open.
struct piece_sigmoid_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const f32v z = size_of(x);
        const InPiece tail = in_piece(z, sigmoid_pieces, 4.0f);
        const __mmask16 upper = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GE_OQ);
        const __m512 one = _mm512_set1_ps(1.0f),
                     high = _mm512_mask_sub_ps((__m512)tail.high, upper, one, (__m512)tail.high);
        const __m512 lost = (one - high) - (__m512)tail.high;
        const __m512 low = _mm512_mask_sub_ps((__m512)tail.low, upper, lost, (__m512)tail.low);
        const f32v error = fused(tail.rest, splat_real(0x1.8p-23f), tail.high * 0x1.4p-36f);
        const f32v result = within((f32v)high, (f32v)low, error, open);
        open |= at_or_beyond(z, 7.875f);
        return result;
    }
};

// x = 2^e * m: e * log(2) - log(r) is exact but for its low parts, and log(m * r) a short series in m * r - 1.
struct piece_log_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const __mmask16 all = (__mmask16)-1;
        const __m512 m = _mm512_maskz_getmant_ps(all, (__m512)x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
        const f32v e = (f32v)_mm512_maskz_getexp_ps(all, (__m512)x) - (f32v)_mm512_maskz_getexp_ps(all, m);
        const u32v j = bit_cast<u32v>((f32v)m) >> 18;
        const f32v r = looked_up(j, log_pieces[0]), product = (f32v)m * r, f = product - 1.0f;
        const f32v lacking = product_error((f32v)m, r, product);
        const f32v whole = fused(e, splat_real(0x1.62e4p-1f), looked_up(j, log_pieces[1])), high = whole + f;
        const f32v beyond = fused(e, splat_real(0x1.7f7d1cp-20f), looked_up(j, log_pieces[2]));
        const f32v rest = polynomial(f, -0.166864872f, 0.200194448f, -0.249999911f, 0.333333284f, -0.5f);
        const f32v square = f * f, lost = ((whole - high) + f) + minus_product(lacking, f, lacking);
        const f32v error = fused(size_of(square * rest), splat_real(0x1p-22f), size_of(whole) * 0x1p-35f);
        const f32v y = within(high, fused(square, rest, lost + beyond), error, open);
        // -infinity of zero, infinity of infinity, NaN of what is negative.
        return with_one_nan((f32v)_mm512_fixupimm_ps((__m512)y, (__m512)x, _mm512_set1_epi32(0x03530422), 0));
    }
};

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
