// Functions of math.h in pairs of floats, on AVX-512: where both ends of the error around the pair round to one
// float32, that is the function's result. That this is so for every float32 is known by trying them all
// (tests/lowprec/test_quick_functions.py).
#ifndef LOWPREC_TWO_FLOATS_H
#define LOWPREC_TWO_FLOATS_H

#include "elementwise/real_lanes.h"
#include "elementwise/roots_of_two.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// a * b + c and c - a * b, rounded once.
LP_INLINE f32v minus_product(f32v a, f32v b, f32v c) { return (f32v)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }
LP_INLINE f32v product_error(f32v a, f32v b, f32v product) {
    return (f32v)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)product);
}

// exp(x) = (high + low) * 2^floor(power), to within 2^-36 of it, for x in [-105, 90].
struct TwoFloats {
    f32v high, low, power;
};
LP_INLINE TwoFloats two_float_exp(f32v x) {
    const f32v shifted = fused(x, splat_real(thirty_seconds), splat_real(to_thirty_seconds));
    const f32v k = shifted - to_thirty_seconds;
    const f32v a = minus_product(k, splat_real(step_high), x), rest = k * -step_low, r = a + rest;
    const f32v series = fused(fused(r, splat_real(0x1.555556p-5f), splat_real(0x1.555556p-3f)), r, splat_real(0.5f));
    const f32v beyond = fused(r * r, series, rest);  // exp(r) - 1 - a
    const f32v head = looked_up(bit_cast<u32v>(shifted), root_high),
               tail = looked_up(bit_cast<u32v>(shifted), root_low);
    const f32v product = head * a, high = head + product;
    const f32v lost = fused(tail, a, product_error(head, a, product)) + ((head - high) + product);
    return {high, fused(head, beyond, tail + lost), k * 0.03125f};
}

// Lanes where a < b or b < a.
LP_INLINE u32 unequal(f32v a, f32v b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_OQ); }

LP_INLINE u32 is_between(f32v x, float low, float high) {
    const __mmask16 above = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(low), _CMP_GT_OQ);
    return _mm512_mask_cmp_ps_mask(above, (__m512)x, _mm512_set1_ps(high), _CMP_LT_OQ);
}

// The sum's float32 where an error of `share` of its greater part does not matter; other lanes are `open`.
LP_INLINE f32v surely(f32v high, f32v low, float share, u32 &open) {
    const f32v least = high + minus_product(high, splat_real(share), low);
    const f32v most = high + fused(high, splat_real(share), low);
    open = unequal(least, most);
    return most;
}

struct two_float_exp_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const TwoFloats y = two_float_exp(between(x, -105.0f, 90.0f));
        const f32v result = scaled_by(surely(y.high, y.low, 0x1.8p-36f, open), y.power);
        open |= is_between(x, -104.0f, -87.0f);  // subnormal
        return with_one_nan(result);
    }
};

struct two_float_sigmoid_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const TwoFloats e = two_float_exp(between(-x, -105.0f, 87.0f));
        const f32v nearest = e.high + e.low, one = splat_real(1.0f);
        const f32v high = scaled_by(nearest, e.power), low = scaled_by((e.high - nearest) + e.low, e.power);
        const i32v large = high > one;
        const f32v sum = one + high, rest = (large ? high - sum : one - sum) + (large ? one : high) + low;
        f32v q = (f32v)_mm512_maskz_rcp14_ps((__mmask16)-1, (__m512)sum);
        q = fused(q, minus_product(sum, q, one), q);
        const f32v lacking = minus_product(rest, q, minus_product(sum, q, one));
        const f32v result = surely(q, q * lacking, 0x1.4p-36f, open);
        open |= is_between(x, -104.0f, -60.0f);  // the error may be subnormal
        return with_one_nan(x <= splat_real(-104.0f) ? f32v{} : result);
    }
};

struct two_float_rsqrt_function {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        const f32v y = (f32v)_mm512_maskz_rsqrt14_ps((__mmask16)-1, (__m512)x);
        const f32v product = x * y;
        const f32v off = minus_product(product_error(x, y, product), y, minus_product(product, y, splat_real(1.0f)));
        const f32v result = surely(y, y * (off * fused(off, splat_real(0.375f), splat_real(0.5f))), 0x1p-36f, open);
        open |= 0xffffu & ~is_between(x, 0.0f, __builtin_inff());
        return result;
    }
};

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
