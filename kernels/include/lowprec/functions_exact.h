// Elementary functions of float32 as fixed sequences of IEEE double operations, over scalar doubles or vectors of them.
// The reference is the same text in Python (lowprec/backends/reference/functions.py). No fused operations, no library
// calls but the correctly rounded square root; each result is within 2^-38 of the true value before it is rounded.
#ifndef LOWPREC_FUNCTIONS_EXACT_H
#define LOWPREC_FUNCTIONS_EXACT_H

#include "bits.h"

namespace lowprec {
inline namespace LP_ISA {

template <class D>
struct Bits64;
template <>
struct Bits64<double> {
    typedef u64 type;
};
#ifdef LP_VECTOR_BYTES
template <>
struct Bits64<f64v> {
    typedef u64v type;
};
#endif
template <class D>
using lanes_u64 = typename Bits64<D>::type;

template <class D>
LP_INLINE lanes_u64<D> to_bits(D x) {
    return bit_cast<lanes_u64<D>>(x);
}

template <class D>
LP_INLINE D from_bits(lanes_u64<D> bits) {
    return bit_cast<D>(bits);
}

template <class D>
LP_INLINE D square_root(D x) {
    D result;
    for (int i = 0; i < int(sizeof(D) / sizeof(double)); ++i)
        reinterpret_cast<double *>(&result)[i] = __builtin_sqrt(reinterpret_cast<const double *>(&x)[i]);
    return result;
}

template <class D>
struct ReductionPair {
    lanes_u64<D> turns;
    D rest;
};
template <class D>
struct ExpParts {
    D fraction, scale;
};

constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: adding and subtracting it rounds to an integer
constexpr double LOG2_E = 0x1.71547652b82fep+0;
constexpr double LN2_HIGH = 0x1.62e42fefa3800p-1;
constexpr double LN2_LOW = 0x1.ef35793c76730p-45;
constexpr double TWO_OVER_PI = 0x1.45f306dc9c883p-1;
constexpr double HALF_PI = 0x1.921fb54442d18p+0;
constexpr double SQRT_HALF = 0x1.6a09e667f3bcdp-1;
constexpr double NORMAL_DENSITY = 0x1.9884533d43651p-2;

// Horner's rule, coefficients given highest first.
template <class D>
LP_INLINE D horner(D, D total) {
    return total;
}
template <class D, class... Rest>
LP_INLINE D horner(D x, D total, double next, Rest... rest) {
    return horner(x, total * x + next, rest...);
}

template <class D>
LP_INLINE D broadcast(double value) {
    return value - D{};
}

template <class D>
LP_INLINE D clamp(D x, double low, double high) {
    const D bottom = broadcast<D>(low), top = broadcast<D>(high);
    x = x < bottom ? bottom : x;
    return x > top ? top : x;
}

template <class D>
LP_INLINE D magnitude(D x) {
    return from_bits<D>(to_bits(x) & 0x7fffffffffffffffull);
}

template <class D>
LP_INLINE D copy_sign(D value, D sign) {
    return from_bits<D>((to_bits(value) & 0x7fffffffffffffffull) | (to_bits(sign) & 0x8000000000000000ull));
}

// (q, s) with exp(x) = s (1 + q), s a power of two; |x| <= 708.
template <class D>
LP_INLINE ExpParts<D> expm1_parts(D x) {
    const D shifted = x * LOG2_E + SHIFT, k = shifted - SHIFT;
    const D r = (x - k * LN2_HIGH) - k * LN2_LOW;
    const D series =
        horner(r, broadcast<D>(1.0 / 479001600.0), 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
               1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0);
    return {r * series, from_bits<D>((to_bits(shifted) << 52) + 0x3ff0000000000000ull)};
}

template <class D>
LP_INLINE D exp_function(D x) {
    const ExpParts<D> e = expm1_parts(clamp(x, -110.0, 90.0));
    return e.scale * e.fraction + e.scale;
}

template <class D>
LP_INLINE D log_function(D x) {
    using U = lanes_u64<D>;
    const U base = to_bits(broadcast<D>(SQRT_HALF)), bits = to_bits(x);
    const U biased = (bits - base + 0x4000000000000000ull) >> 52;  // exponent + 1024
    const D exponent = from_bits<D>(biased | 0x4330000000000000ull) - (4503599627370496.0 + 1024.0);
    const D mantissa = from_bits<D>(bits - (biased << 52) + 0x4000000000000000ull);
    const D s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s;
    const D series = horner(square, broadcast<D>(1.0 / 17.0), 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0,
                            1.0 / 5.0, 1.0 / 3.0, 1.0);
    const D tail = (2.0 * s) * series;
    D result = exponent * LN2_HIGH + (tail + exponent * LN2_LOW);
    const D zero = broadcast<D>(0.0), infinity = broadcast<D>(__builtin_inf());
    result = x == zero ? -infinity : result;
    result = x == infinity ? infinity : result;
    return x >= zero ? result : broadcast<D>(__builtin_nan(""));
}

template <class D>
LP_INLINE D tanh_function(D x) {
    const ExpParts<D> e = expm1_parts(clamp(2.0 * magnitude(x), 0.0, 80.0));
    const D expm1 = e.scale * e.fraction + (e.scale - 1.0);
    return copy_sign(expm1 / (expm1 + 2.0), x);
}

template <class D>
LP_INLINE D sigmoid_function(D x) {
    const ExpParts<D> e = expm1_parts(clamp(-x, -110.0, 110.0));
    return 1.0 / (1.0 + (e.scale * e.fraction + e.scale));
}

template <class D>
LP_INLINE D rsqrt_function(D x) {
    const D zero = broadcast<D>(0.0);
    const D result = 1.0 / square_root(x);
    return x == zero ? copy_sign(broadcast<D>(__builtin_inf()), x) : result;
}

// erfc(z) for 0 <= z <= 29, given z * z. The variable of the fit is Shepherd and Laframboise's (Math. Comp. 36, 1981).
template <class D>
LP_INLINE D erfc_function(D z, D square) {
    const ExpParts<D> e = expm1_parts(clamp(-square, -700.0, 0.0));
    const D t = (z - 3.75) / (z + 3.75);
    const D fit = horner(t, broadcast<D>(1.0583134067995278e-08), 9.389140006861069e-07, -1.080129997549226e-06,
                         -1.0108068004577932e-05, 2.248246706206872e-05, 5.0383095381402655e-05, -0.0002902088610730323,
                         0.0002944324640493049, 0.0017556441634478089, -0.009746822711336535, 0.02836227393817239,
                         -0.05869335199612734, 0.09230432149469189, -0.1088039346394731, 0.08227673847770144,
                         0.0035854156533391994, -0.14024059858547028, 1.2375126308367923);
    return (e.scale * e.fraction + e.scale) * (fit / (1.0 + 2.0 * z));
}

template <class D>
LP_INLINE D erf_function(D x) {
    const D small =
        x * horner(x * x, broadcast<D>(9.428596956834164e-09), -1.5188281247335167e-07, 1.631035651387174e-06,
                   -1.4913300906316395e-05, 0.00012054681918310599, -0.0008548304871782741, 0.005223977154105304,
                   -0.026866170586496874, 0.11283791670580423, -0.376126389031744, 1.1283791670955121);
    const D z = clamp(magnitude(x), 0.0, 12.0);
    const D large = copy_sign(1.0 - erfc_function(z, z * z), x);
    return magnitude(x) >= broadcast<D>(1.0) ? large : small;
}

// Phi(x), the normal distribution function.
template <class D>
LP_INLINE D normal_distribution(D x) {
    const D size = clamp(magnitude(x), 0.0, 40.0);
    const D upper = 0.5 * erfc_function(size * SQRT_HALF, 0.5 * (size * size));
    return x < broadcast<D>(0.0) ? upper : 1.0 - upper;
}

template <class D>
LP_INLINE D gelu_function(D x) {
    return clamp(x, -40.0, __builtin_inf()) * normal_distribution(x);
}

template <class D>
LP_INLINE D gelu_gradient_function(D x) {
    const D bounded = clamp(x, -40.0, 40.0);
    const ExpParts<D> e = expm1_parts(clamp(-0.5 * (bounded * bounded), -700.0, 0.0));
    return normal_distribution(x) + bounded * (NORMAL_DENSITY * (e.scale * e.fraction + e.scale));
}

// One |x| > 32768 as turns * (pi / 2) + rest, by the bits of 2 / pi that matter (Payne and Hanek).
LP_INLINE void reduce_large(double x, u64 &turns, double &rest) {
    const u32 two_over_pi[8] = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                                0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};
    const u64 bits = to_bits(x);
    const int exponent = int((bits >> 52) & 0x7ff) - 1023 - 23;  // x = integer * 2^exponent
    const u64 integer = ((bits & 0xfffffffffffffull) | 0x10000000000000ull) >> 29;
    const int skip = exponent - 2;  // the window's first bit of 2 / pi has weight 2 after scaling
    u32 window[4];
    for (int i = 0; i < 4; ++i) {
        const int at = skip + 32 * i;  // the window's word i starts at this bit of 2 / pi; below zero it is all zeros
        const int word = (at + 32) / 32 - 1, shift = at & 31;
        const u64 high = word < 0 ? 0 : two_over_pi[word], low = two_over_pi[word + 1];
        window[i] = u32((((high << 32) | low) << shift) >> 32);
    }
    u64 carry = 0;
    u32 product[4];
    for (int i = 3; i >= 0; --i) {
        carry += integer * window[i];
        product[i] = u32(carry);
        carry >>= 32;
    }
    const u64 high = (u64(product[0]) << 32) | product[1], low = (u64(product[2]) << 32) | product[3];
    const u64 n = (high + 0x2000000000000000ull) >> 62;
    const double r = (double(i64(high - (n << 62))) * 0x1p-62 + double(low) * 0x1p-126) * HALF_PI;
    turns = x > 0.0 ? n : 0 - n;
    rest = x > 0.0 ? r : -r;
}

template <class D>
LP_INLINE D sine(D x, u64 quadrant) {
    using U = lanes_u64<D>;
    const D shifted = x * TWO_OVER_PI + SHIFT, k = shifted - SHIFT;
    D r = ((x - k * 0x1.921fb54400000p+0) - k * 0x1.0b4611a600000p-34) - k * 0x1.3198a2e037073p-69;
    U turns = to_bits(shifted);
    const double *value = reinterpret_cast<const double *>(&x);
    for (int i = 0; i < int(sizeof(D) / sizeof(double)); ++i)
        if ((value[i] > 32768.0 || value[i] < -32768.0) && value[i] - value[i] == 0.0)
            reduce_large(value[i], reinterpret_cast<u64 *>(&turns)[i], reinterpret_cast<double *>(&r)[i]);
    turns += quadrant;
    const D square = r * r;
    const D sine_value = r * horner(square, broadcast<D>(-1.0 / 1307674368000.0), 1.0 / 6227020800.0, -1.0 / 39916800.0,
                                    1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0);
    const D cosine_value = horner(square, broadcast<D>(1.0 / 20922789888000.0), -1.0 / 87178291200.0, 1.0 / 479001600.0,
                                  -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0, 1.0);
    const D result = (turns & 1) != 0 ? cosine_value : sine_value;
    const D signed_result = from_bits<D>(to_bits(result) ^ ((turns & 2) << 62));
    return magnitude(x) < broadcast<D>(__builtin_inf()) ? signed_result : broadcast<D>(__builtin_nan(""));
}

template <class D>
LP_INLINE D sin_function(D x) {
    return sine(x, 0);
}
template <class D>
LP_INLINE D cos_function(D x) {
    return sine(x, 1);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
