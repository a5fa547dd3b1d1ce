// One operation on doubles with its rounding error, and the step to a double that rounds further as the exact result.
//
// Such a double is the exact result rounded to odd: the result itself, or the neighbour with an odd last bit. Rounding
// it to at most 51 bits, or cutting it there, gives what the exact result gives (Boldo and Melquiond, "Emulation of a
// FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57, 2008).
#ifndef LOWPREC_EXACT_H
#define LOWPREC_EXACT_H

#include "round.h"

namespace lowprec {

enum ExactOperation { exact_add, exact_subtract, exact_multiply, exact_divide, exact_sqrt, exact_fma };

inline namespace LP_ISA {

// The operation rounded to nearest, and a number with the sign of (exact result - value); 0 where the value is exact.
// For sums and products it is that difference itself. `left` is nonzero where the operands are finite but so large or
// so small that it may not be: such elements are left to the reference.
struct Exact {
    double value, error;
    int left;
};

constexpr double least_product = 0x1p-960;  // above it no error of a product or remainder underflows
constexpr double most = 0x1p1022;           // below it no sum or difference on the way overflows

LP_INLINE int finite(double x) { return (bit_cast<u64>(x) & Carrier<u64>::magnitude) < Carrier<u64>::infinity; }

LP_INLINE double size_of_double(double x) { return bit_cast<double>(bit_cast<u64>(x) & Carrier<u64>::magnitude); }

LP_INLINE u64 sign_of(double x) { return bit_cast<u64>(x) >> 63; }

// Knuth's sum: s + e = a + b exactly, for finite a and b far from overflow.
LP_INLINE double two_sum(double a, double b, double &e) {
    double s = a + b, part = s - a;
    e = (a - (s - part)) + (b - part);
    return s;
}

// One last place from x toward the sign of `error`, in a double's bits; x is not zero.
LP_INLINE u64 step_toward(double x, double error) {
    u64 bits = bit_cast<u64>(x);
    return sign_of(x) == sign_of(error) ? bits + 1 : bits - 1;
}

LP_INLINE double to_odd(double x, double error) {
    u64 bits = bit_cast<u64>(x);
    u64 other = step_toward(x, error);
    return bit_cast<double>(error != 0 && (bits & 1) == 0 ? other : bits);
}

LP_INLINE Exact sum_of(double a, double b) {
    Exact x;
    x.value = two_sum(a, b, x.error);
    int both = finite(a) & finite(b);
    x.error = both ? x.error : 0.0;
    x.left = both & !(size_of_double(x.value) < most);
    return x;
}

LP_INLINE Exact product_of(double a, double b) {
    Exact x;
    x.value = a * b;
    int both = finite(a) & finite(b);
    x.error = both ? __builtin_fma(a, b, -x.value) : 0.0;
    double size = size_of_double(x.value);
    x.left = both & (a != 0) & (b != 0) & !((size >= least_product) & (size < most));
    return x;
}

LP_INLINE Exact quotient_of(double a, double b) {
    Exact x;
    x.value = a / b;
    int plain = finite(a) & finite(b) & (a != 0) & (b != 0);
    double rest = __builtin_fma(-x.value, b, a);
    x.error = plain ? (sign_of(b) ? -rest : rest) : 0.0;
    double size = size_of_double(x.value);
    x.left = plain & !((size_of_double(a) >= least_product) & (size >= least_product) & (size < most));
    return x;
}

LP_INLINE Exact root_of(double a) {
    Exact x;
    x.value = __builtin_sqrt(a);
    int plain = finite(a) & (a > 0);
    x.error = plain ? __builtin_fma(-x.value, x.value, a) : 0.0;
    x.left = plain & !(a >= least_product);
    return x;
}

// a * b + c. The two errors are summed to odd, so that the error has the sign, and where it is a tie the size, of the
// exact one.
LP_INLINE Exact fma_of(double a, double b, double c) {
    Exact product = product_of(a, b), x;
    double low, lower;
    double middle = two_sum(c, product.error, low);
    double high = two_sum(product.value, middle, lower);
    double both, rest;
    both = two_sum(low, lower, rest);
    double tail = to_odd(both, rest);
    x.value = two_sum(high, tail, x.error);
    int plain = finite(a) & finite(b) & finite(c);
    x.left = plain & (product.left | !(size_of_double(x.value) < most));
    int direct = !plain | (x.value == 0);
    x.value = direct ? __builtin_fma(a, b, c) : x.value;
    x.error = direct ? 0.0 : x.error;
    return x;
}

// An exact sum of zero is -0 where rounding goes down, unless both terms are +0.
LP_INLINE double signed_zero(double sum, double a, double b, int down) {
    return down & (sum == 0) & int(sign_of(a) | sign_of(b)) ? -0.0 : sum;
}

template <int operation>
LP_INLINE Exact exact_result(double a, double b, double c, int down) {
    Exact x;
    if constexpr (operation == exact_subtract) b = -b;
    if constexpr (operation == exact_add || operation == exact_subtract) {
        x = sum_of(a, b);
        x.value = signed_zero(x.value, a, b, down);
    }
    if constexpr (operation == exact_multiply) x = product_of(a, b);
    if constexpr (operation == exact_divide) x = quotient_of(a, b);
    if constexpr (operation == exact_sqrt) x = root_of(a);
    if constexpr (operation == exact_fma) {
        x = fma_of(a, b, c);
        x.value = signed_zero(x.value, a * b, c, down);
    }
    return x;
}

// The exact result rounded to a double by a mode. In stochastic mode inexact results are left.
template <int mode>
LP_INLINE double round_exact(Exact x, int &left) {
    static_assert(mode == nearest_even || mode == nearest_away || mode == toward_zero || mode == up || mode == down ||
                      mode == odd || mode == stochastic,
                  "a mode without a rule");
    left = x.left;
    u64 bits = bit_cast<u64>(x.value), next = step_toward(x.value, x.error);
    int outward = sign_of(x.value) == sign_of(x.error), off = x.error != 0;
    if constexpr (mode == odd) return to_odd(x.value, x.error);
    if constexpr (mode == toward_zero) off &= !outward;
    if constexpr (mode == up) off &= x.error > 0;
    if constexpr (mode == down) off &= x.error < 0;
    if constexpr (mode == nearest_away) {  // to even was wrong where a tie went inward
        double gap = size_of_double(bit_cast<double>(bits + 1)) - size_of_double(x.value);
        off &= outward & (2 * size_of_double(x.error) == gap);
    }
    if constexpr (mode == stochastic) left |= off;
    if constexpr (mode == nearest_even || mode == stochastic) return x.value;
    return bit_cast<double>(off ? next : bits);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
