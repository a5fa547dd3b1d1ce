// The functions of functions_exact.h by shorter sequences of double operations, with the errors they may have beside
// those: where value - error and value + error round to one float32, that is the function's result. That this is so for
// every float32 is known by trying them all (tests/lowprec/test_quick_functions.py).
//
// Polynomials are minimax fits, made by weighted least squares on Chebyshev nodes.
#ifndef LOWPREC_FUNCTIONS_DOUBLES_H
#define LOWPREC_FUNCTIONS_DOUBLES_H

#include "isa/lanes.h"
#include "lowprec/elementwise.h"

namespace lowprec {
inline namespace LP_ISA {

struct Approximation {
    f64v value, error;  // the error's sign does not matter
};

LP_INLINE f64v mul_add(f64v a, f64v b, f64v c) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (f64v)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__) && LP_VECTOR_BYTES == 32
    return (f64v)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

// Horner's rule, coefficients given highest first.
LP_INLINE f64v polynomial(f64v, f64v total) { return total; }
template <class... Rest>
LP_INLINE f64v polynomial(f64v x, f64v total, double next, Rest... rest) {
    return polynomial(x, mul_add(total, x, broadcast<f64v>(next)), rest...);
}

LP_INLINE Approximation relative(f64v value) { return {value, value * 0x1p-37}; }

// (q, s) with exp(x) = s (1 + q), s a power of two; |x| <= 700.
LP_INLINE ExpParts<f64v> short_expm1_parts(f64v x) {
    const f64v shifted = mul_add(x, broadcast<f64v>(LOG2_E), broadcast<f64v>(SHIFT)), k = shifted - SHIFT;
    const f64v r = mul_add(k, broadcast<f64v>(-0x1.62e42fefa39efp-1), x);
    const f64v fit = polynomial(r, broadcast<f64v>(2.755489977012202e-06), 2.4876040774172833e-05,
                                0.00019841377520663243, 0.0013888821943342621, 0.0083333332269957972,
                                0.041666666889342181, 0.16666666666952032, 0.49999999999800387, 0.99999999999998779);
    return {r * fit, from_bits<f64v>((to_bits(shifted) << 52) + 0x3ff0000000000000ull)};
}

LP_INLINE f64v short_exp(f64v x) {
    const ExpParts<f64v> e = short_expm1_parts(x);
    return mul_add(e.scale, e.fraction, e.scale);
}

struct short_exp_function {
    static LP_INLINE Approximation of(f64v x) { return relative(short_exp(clamp(x, -110.0, 90.0))); }
};

struct short_tanh_function {
    static LP_INLINE Approximation of(f64v x) {
        const ExpParts<f64v> e = short_expm1_parts(clamp(2.0 * magnitude(x), 0.0, 80.0));
        const f64v expm1 = mul_add(e.scale, e.fraction, e.scale - 1.0);
        return relative(copy_sign(expm1 / (expm1 + 2.0), x));
    }
};

struct short_sigmoid_function {
    static LP_INLINE Approximation of(f64v x) { return relative(1.0 / (1.0 + short_exp(clamp(-x, -110.0, 110.0)))); }
};

// exp(-z^2 / 2), and (1 - Phi(z)) over it, for z in [0, 15].
struct NormalTail {
    f64v density, ratio;
};
LP_INLINE NormalTail short_normal_tail(f64v z) {
    const f64v over = z + 4.0, under = z + 1.0, inverse = 1.0 / (over * under);
    const f64v t = (z - 4.0) * (under * inverse);
    const f64v fit = polynomial(
        t, broadcast<f64v>(-4.6740494562287807e-07), -2.7001459345838083e-06, -2.5739664501610666e-06,
        1.4160266499408435e-05, 2.0967768844946826e-05, -8.8170888912352205e-05, -9.4407264080201967e-05,
        0.00069498083054549153, -0.00028561737051596968, -0.0050023897637866636, 0.017936096252041046,
        -0.032197836702351441, 0.028600364124714284, 0.013999634706004795, -0.096703477327521936, 0.47205320650992422);
    return {short_exp(-0.5 * (z * z)), fit * (over * inverse)};
}

struct short_erf_function {
    static LP_INLINE Approximation of(f64v x) {
        const f64v small = x * polynomial(x * x, broadcast<f64v>(-1.044287372498291e-07), 1.5294499294826443e-06,
                                          -1.4792790002923517e-05, 0.00012046032803279659, -0.00085479201408355252,
                                          0.0052239667172166984, -0.026866168956559581, 0.11283791657613447,
                                          -0.37612638902772166, 1.1283791670954904);
        const NormalTail tail = short_normal_tail(clamp(magnitude(x) * 0x1.6a09e667f3bcdp+0, 0.0, 15.0));
        const f64v large = copy_sign(1.0 - 2.0 * (tail.density * tail.ratio), x);
        return relative(magnitude(x) >= broadcast<f64v>(1.0) ? large : small);
    }
};

struct short_gelu_function {
    static LP_INLINE Approximation of(f64v x) {
        const f64v bounded = clamp(x, -15.0, __builtin_inf());
        const NormalTail tail = short_normal_tail(clamp(magnitude(bounded), 0.0, 15.0));
        const f64v upper = tail.density * tail.ratio;
        return relative(bounded * (x < broadcast<f64v>(0.0) ? upper : 1.0 - upper));
    }
};

// Near the function's zero the error is not relative to the result, but to the two terms that cancel.
struct short_gelu_gradient_function {
    static LP_INLINE Approximation of(f64v x) {
        const f64v z = clamp(magnitude(x), 0.0, 15.0), slope = z * NORMAL_DENSITY;
        const NormalTail tail = short_normal_tail(z);
        const f64v lower = tail.density * (tail.ratio - slope), scale = tail.density * (tail.ratio + slope);
        const auto negative = x < broadcast<f64v>(0.0);
        const f64v value = negative ? lower : 1.0 - lower;
        return {value, (negative ? scale : scale + 1.0) * 0x1p-39};
    }
};

// Beyond 2^15 the reduction is not exact enough.
template <u64 quadrant>
struct short_sine {
    static LP_INLINE Approximation of(f64v x) {
        const f64v shifted = x * TWO_OVER_PI + SHIFT, k = shifted - SHIFT;
        const f64v r = (x - k * 0x1.921fb54400000p+0) - k * 0x1.0b4611a600000p-34 - k * 0x1.3198a2e037073p-69;
        const u64v turns = to_bits(shifted) + quadrant;
        const f64v square = r * r;
        const f64v sine =
            r * polynomial(square, broadcast<f64v>(-2.4755520504682619e-08), 2.7555254983893921e-06,
                           -0.00019841263201820798, 0.0083333333236515865, -0.16666666666614788, 0.99999999999999423);
        const f64v cosine =
            polynomial(square, broadcast<f64v>(-2.7168034662597306e-07), 2.4798844994635585e-05, -0.0013888879937692161,
                       0.041666666533749043, -0.49999999999271671, 0.99999999999993472);
        const f64v y = (turns & 1) != 0 ? cosine : sine;
        const auto far = magnitude(x) > broadcast<f64v>(32768.0);
        const f64v value = far ? broadcast<f64v>(0.0) : from_bits<f64v>(to_bits(y) ^ ((turns & 2) << 62));
        const f64v nothing = x - x;  // NaN for infinities and NaN
        const auto finite = nothing == nothing;
        return {finite ? value : nothing, far ? broadcast<f64v>(2.0) : value * 0x1p-37};
    }
};
typedef short_sine<0> short_sin_function;
typedef short_sine<1> short_cos_function;

// The float32 of each lane, but of those that the error leaves `open`.
template <class Function>
struct by_doubles {
    static LP_INLINE f32v rounded(f32v x, u32 &open) {
        f32half part[2], low[2], high[2];
        __builtin_memcpy(part, &x, sizeof x);
        for (int i = 0; i < 2; ++i) {
            const Approximation y = Function::of(__builtin_convertvector(part[i], f64v));
            low[i] = __builtin_convertvector(y.value - y.error, f32half);
            high[i] = __builtin_convertvector(y.value + y.error, f32half);
        }
        f32v below, above;
        __builtin_memcpy(&below, low, sizeof below);
        __builtin_memcpy(&above, high, sizeof above);
        open = lanes_set(bit_cast<u32v>(below) ^ bit_cast<u32v>(above));
        return with_one_nan(above);
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
