// The functions of math.h for float16 operands and results, by float32 operations so short that their error shows in
// float32. Rounded to float16, nearest-even, they are what the functions' float32 results are rounded to: of 65,536
// operands all have been tried (tests/lowprec/test_quick_functions.py). Every operation is rounded as IEEE says, on
// every machine alike, but the first estimate of a reciprocal root on AVX-512, of which any value that its definition
// allows has been tried. Results beside NaN are one NaN only after with_one_nan.
//
// Polynomials are minimax fits; their last bits are chosen so that no operand is rounded wrongly.
#ifndef LOWPREC_HALF_FUNCTIONS_H
#define LOWPREC_HALF_FUNCTIONS_H

#include "elementwise/real_lanes.h"
#include "lowprec/elementwise.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__F16C__) && defined(__FMA__)

// x = n * ln 2 + rest; the low bits of `shifted` are those of n.
struct PowerOfTwo {
    u32v shifted;
    f32v rest;
};
LP_INLINE PowerOfTwo power_of_two_in(f32v x) {
    const f32v shifted = fused(x, splat_real(log2_e), splat_real(to_integer)), n = shifted - to_integer;
    return {bit_cast<u32v>(shifted), fused(n, splat_real(-ln2_low), fused(n, splat_real(-ln2_high), x))};
}

// exp(x) = 2^n * (1 + rest * slope).
LP_INLINE f32v slope_of_exp(f32v rest) {
    return polynomial(rest, 0.00138131401f, 0.00836941972f, 0.041668456f, 0.166665152f, 0.49999994f, 1.0f);
}

// exp(x) for |x| <= 20.
LP_INLINE f32v narrow_exp(f32v x) {
    const PowerOfTwo p = power_of_two_in(x);
    const f32v fraction = fused(slope_of_exp(p.rest), p.rest, splat_real(1.0f));
    return bit_cast<f32v>(bit_cast<u32v>(fraction) + (p.shifted << 23));
}

struct half_exp {
    static LP_INLINE f32v of(f32v x) { return narrow_exp(between(x, -18.0f, 12.0f)); }
};

struct half_log {
    static LP_INLINE f32v of(f32v x) {
        const u32v bits = bit_cast<u32v>(x);  // unsigned: those of negative numbers wrap
        const i32v exponent = bit_cast<i32v>(bits - 0x3f3504f3u) >> 23;
        const f32v f = bit_cast<f32v>(bits - (bit_cast<u32v>(exponent) << 23)) - 1.0f;
        const f32v e = __builtin_convertvector(exponent, f32v);
        const f32v fit = polynomial(f, -0.0763393864f, 0.129239321f, -0.132478639f, 0.14179267f, -0.166082308f,
                                    0.200020716f, -0.250016183f, 0.333333254f, -0.499999881f);
        f32v y = fused(e, splat_real(ln2_high), f + fused(f * f, fit, e * ln2_low));
        y = x == splat_real(__builtin_inff()) ? x : y;
        y = x == f32v{} ? splat_real(-__builtin_inff()) : y;
        return x >= f32v{} ? y : splat_real(__builtin_nanf(""));
    }
};

struct half_tanh {
    static LP_INLINE f32v of(f32v x) {
        const f32v z = between(x, -4.6f, 4.6f), square = z * z;
        const f32v over = polynomial(square, -1.14341523e-08f, 9.44376916e-06f, 0.00296019902f, 0.129597887f, 1.0f);
        return z * over / polynomial(square, 0.00023261203f, 0.0239372943f, 0.462931216f, 1.0f);
    }
};

// 1 / (1 + exp(-x)), with what the sum and the quotient lack: for small x it is close to a middle of two numbers.
struct half_sigmoid {
    static LP_INLINE f32v of(f32v x) {
        const PowerOfTwo p = power_of_two_in(-between(x, -18.0f, 18.0f));
        const f32v scale = bit_cast<f32v>((p.shifted << 23) + 0x3f800000u), scaled = scale * p.rest, one = scale + 1.0f;
        const f32v slope = slope_of_exp(p.rest), sum = fused(scaled, slope, one), y = 1.0f / sum;
        const f32v lacking = fused(scaled, slope, one - sum);
        return fused(y, fused(-lacking, y, fused(-sum, y, splat_real(1.0f))), y);
    }
};

struct half_rsqrt {
    static LP_INLINE f32v of(f32v x) {
#if LP_VECTOR_BYTES == 64
        const f32v first = (f32v)_mm512_maskz_rsqrt14_ps((__mmask16)-1, (__m512)x);
        const f32v y = fused(first * 0.5f, fused(-(x * first), first, splat_real(1.0f)), first);
        return y == y ? y : first;  // of 0 and of infinity
#else
        return 1.0f / root(x);
#endif
    }
};

struct half_erf {
    static LP_INLINE f32v of(f32v x) {
        const f32v z = between(x, -2.7f, 2.7f);
        return z * polynomial(fused(z, z, splat_real(-3.5f)), 3.90744468e-12f, -6.26390328e-11f, 6.46185994e-10f,
                              -7.09670944e-09f, 7.64535741e-08f, -7.38358438e-07f, 6.42001532e-06f, -5.03153351e-05f,
                              0.000353434938f, -0.00222505513f, 0.0127526158f, -0.0708702132f, 0.530165613f);
    }
};

// max(x, 0) - z * (1 - Phi(z)), z = |x|, of which exp(-z^2 / 2) is a factor and z^2 exact.
struct half_gelu {
    static LP_INLINE f32v of(f32v x) {
        const f32v z = at_most(size_of(x), 6.0f), inverse = 1.0f / (z + 4.0f);
        const f32v ratio = polynomial(fused(inverse, splat_real(-8.0f), splat_real(1.0f)), 0.000580323569f,
                                      0.00199557864f, -0.00335317175f, -0.00753836567f, 0.0603870675f, -0.186522961f,
                                      0.387138009f, -0.607896447f, 0.755285382f);
        return fused(-(z * narrow_exp(z * z * -0.5f)), ratio * inverse, at_least(x, 0.0f));
    }
};

template <u32 quadrant>
struct half_sine {
    // sin(x) and cos(x) are sin(x - k * pi), where k is an integer or between two, but for a sign.
    static LP_INLINE f32v of(f32v x) {
        const f32v per_half_turn = splat_real(0x1.45f306p-2f);
        const f32v turns = quadrant ? fused(x, per_half_turn, splat_real(0.5f)) + to_integer
                                    : fused(x, per_half_turn, splat_real(to_integer));
        const f32v k = quadrant ? 0.5f - (turns - to_integer) : -(turns - to_integer);
        const f32v near = fused(k, splat_real(0x1.921fb4p+1f), x);  // pi's parts are positive: zeros keep their sign
        const f32v r = fused(k, splat_real(0x1.846988p-47f), fused(k, splat_real(0x1.4442dp-23f), near));
        const f32v sine =
            r * polynomial(r * r, 2.60177217e-06f, -0.000198080714f, 0.00833307579f, -0.166666612f, 0.99999994f);
        return bit_cast<f32v>(bit_cast<u32v>(sine) ^ (bit_cast<u32v>(turns) << 31));
    }
};
typedef half_sine<0> half_sin;
typedef half_sine<1> half_cos;

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
