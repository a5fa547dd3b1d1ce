// Functions by pieces with a polynomial each, on AVX-512: around the middle of its piece a function is a constant and a
// slope, both known to twice float32's bits, and terms so small that float32 will do for them. What these may be off by
// tells where the result's float32 is certain. That it is so for every float32 is known by trying them all
// (tests/lowprec/test_quick_functions.py).
#ifndef LOWPREC_IN_PIECES_H
#define LOWPREC_IN_PIECES_H

#include "elementwise/piece_tables.h"
#include "elementwise/real_lanes.h"
#include "elementwise/two_floats.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// high + low, where an error in `second` is that of the terms beyond the slope's.
struct InPiece {
    f32v high, low, second;
};

// For z in [0, 31.5 / per_unit).
template <int rows>
LP_INLINE InPiece in_piece(f32v z, const float (&table)[rows][32], float per_unit) {
    const f32v shifted = fused(z, splat_real(per_unit), splat_real(to_integer));
    const f32v d = fused(shifted - to_integer, splat_real(-1.0f / per_unit), z);  // exact
    const u32v i = bit_cast<u32v>(shifted);
    f32v rest = looked_up(i, table[rows - 1]);
    for (int row = rows - 2; row >= 4; --row) rest = fused(rest, d, looked_up(i, table[row]));
    const f32v value = looked_up(i, table[0]), slope = looked_up(i, table[2]);
    const f32v square = d * d, product = slope * d, high = value + product;
    const f32v lacking = fused(looked_up(i, table[3]), d, looked_up(i, table[1]));
    const f32v lost = product_error(slope, d, product) + ((value - high) + product);
    return {high, fused(square, rest, lacking + lost), square * rest};
}

// The float32 of high + low where it is the same with any error up to `error`; else lanes of `open` are set.
LP_INLINE f32v within(f32v high, f32v low, f32v error, u32v &open) {
    const f32v least = high + (low - error), most = high + (low + error);
    open = bit_cast<u32v>(least) ^ bit_cast<u32v>(most);
    return most;
}

struct piece_erf_function {
    static LP_INLINE f32v rounded(f32v x, u32v &open) {
        const f32v size = size_of(x);
        const InPiece y = in_piece(at_most(size, 0x1.f7fffep+1f), erf_pieces, 8.0f);  // from there on it is 1
        const f32v error = fused(size_of(y.second), splat_real(0x1.bp-23f), y.high * 0x1p-37f);
        const f32v result = within(y.high, y.low, error, open);
        open |= (u32v)is_between(size, 0.0f, 0x1p-60f);  // errors may be subnormal
        return with_sign_of(result, x);
    }
};

// max(x, 0) - z * (1 - Phi(z)), z = |x|.
struct piece_gelu_function {
    static LP_INLINE f32v rounded(f32v x, u32v &open) {
        const f32v z = size_of(x);
        const InPiece tail = in_piece(z, normal_tail_pieces, 8.0f);
        const f32v product = z * tail.high, beyond = fused(z, tail.low, product_error(z, tail.high, product));
        const f32v upper = at_least(x, 0.0f), high = upper - product, low = ((upper - high) - product) - beyond;
        const f32v error = z * fused(size_of(tail.second), splat_real(0x1.1p-22f), tail.high * 0x1p-37f);
        const f32v result = within(high, low, error, open);
        open |= (u32v)(z >= splat_real(3.9375f)) | (u32v)is_between(z, 0.0f, 0x1p-99f);
        return with_sign_of(result, x);  // of zero too
    }
};

struct piece_sigmoid_function {
    static LP_INLINE f32v rounded(f32v x, u32v &open) {
        const f32v z = size_of(x);
        const InPiece tail = in_piece(z, sigmoid_pieces, 4.0f);
        const f32v upper = x >= f32v{} ? splat_real(1.0f) : f32v{}, high = upper - tail.high;  // or its negative
        const f32v low = ((upper - high) - tail.high) - tail.low;
        const f32v error = fused(size_of(tail.second), splat_real(0x1p-22f), tail.high * 0x1p-37f);
        const f32v result = within(high, low, error, open);
        open |= (u32v)(z >= splat_real(7.875f));
        return size_of(result);
    }
};

// x = 2^e * m: e * log(2) - log(r) is exact but for its low parts, and log(m * r) a short series in m * r - 1.
struct piece_log_function {
    static LP_INLINE f32v rounded(f32v x, u32v &open) {
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
        return (f32v)_mm512_fixupimm_ps((__m512)y, (__m512)x, _mm512_set1_epi32(0x03530422), 0);
    }
};

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
