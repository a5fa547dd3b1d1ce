// The operations of float32_op on one element or a vector of them: one IEEE float32 operation each, or a function of
// functions_exact.h evaluated in double and rounded once to float32. The conversion to the wanted format comes after.
#ifndef LOWPREC_ELEMENTWISE_H
#define LOWPREC_ELEMENTWISE_H

#include "functions_exact.h"

namespace lowprec {
inline namespace LP_ISA {

// Float lanes F with their bits L.
template <class F>
struct Bits32;
template <>
struct Bits32<float> {
    typedef u32 type;
};
#ifdef LP_VECTOR_BYTES
template <>
struct Bits32<f32v> {
    typedef u32v type;
};
typedef float f32half __attribute__((vector_size(LP_VECTOR_BYTES / 2)));  // as many floats as f64v has doubles
#endif

template <class F>
LP_INLINE F constant(float value) {
    return value - F{};
}

// Applies a function over doubles to float lanes: widen, evaluate, round once.
template <class Function>
LP_INLINE float through_double(float x, Function function) {
    return float(function(double(x)));
}
#ifdef LP_VECTOR_BYTES
template <class Function>
LP_INLINE f32v through_double(f32v x, Function function) {
    f32half part[2];
    __builtin_memcpy(part, &x, sizeof x);
    for (int i = 0; i < 2; ++i)
        part[i] = __builtin_convertvector(function(__builtin_convertvector(part[i], f64v)), f32half);
    __builtin_memcpy(&x, part, sizeof x);
    return x;
}
#endif

// Every operation takes three operands and ignores those it does not need.
#define LP_OPERATION(name, result)                \
    struct name##_operation {                     \
        template <class F>                        \
        static LP_INLINE F apply(F a, F b, F c) { \
            (void)a, (void)b, (void)c;            \
            return result;                        \
        }                                         \
    };
// A struct, not a lambda: NVRTC 13.0 takes generic lambdas for functions of the host.
#define LP_FUNCTION(name)                      \
    struct name##_of {                         \
        template <class X>                     \
        LP_INLINE auto operator()(X x) const { \
            return name##_function(x);         \
        }                                      \
    };                                         \
    LP_OPERATION(name, through_double(a, name##_of()))

template <class F>
LP_INLINE F with_sign_bits(F x, u32 keep, u32 flip) {
    typedef typename Bits32<F>::type L;
    return bit_cast<F>((bit_cast<L>(x) & keep) ^ flip);
}

template <class F>
LP_INLINE F root(F x) {
    F result;
    for (int i = 0; i < int(sizeof(F) / sizeof(float)); ++i)
        reinterpret_cast<float *>(&result)[i] = __builtin_sqrtf(reinterpret_cast<const float *>(&x)[i]);
    return result;
}

// What a comparison with b chose, which where a is NaN is a: a NaN of either operand wins, of equal values the first.
template <class F>
LP_INLINE F unless_nan(F chosen, F b) {
    return b == b ? chosen : b;
}

// The nearest whole number, of two the even one, with the sign of x: adding 2^23 leaves no place for a fraction.
template <class F>
LP_INLINE F whole(F x) {
    const F size = with_sign_bits(x, 0x7fffffffu, 0u), two23 = constant<F>(8388608.0f);
    typedef typename Bits32<F>::type L;
    const F near = bit_cast<F>(bit_cast<L>((size + two23) - two23) | (bit_cast<L>(x) & 0x80000000u));
    return size < two23 ? near : x;
}

template <class F>
LP_INLINE F whole_below(F x) {
    const F near = whole(x);
    return near > x ? near - 1.0f : near;
}

// a - n b with the sign of a, n the whole part of a / b; exact. NaN where a is infinite or b is 0.
LP_INLINE float float_remainder(float a, float b) {
    const double most = 134217728.0;  // 2^27
    const double size = with_sign_bits(b, 0x7fffffffu, 0u);
    double left = with_sign_bits(a, 0x7fffffffu, 0u);
    if (!(left < __builtin_inf()) || !(size > 0.0)) return float(__builtin_nan(""));
    while (left >= size) {
        // Both are multiples of the last place of `step`, a number of 24 bits: a quotient below 2^27 is cut off
        // rightly, times `step` it is a double, and what is left has 24 bits again.
        double step = size;
        while (left >= step * most) step *= most;
        left -= double(int(left / step)) * step;
    }
    return with_sign_bits(float(left), ~0u, bit_cast<u32>(a) & 0x80000000u);
}
template <class F>
LP_INLINE F remainder(F a, F b) {
    F result;
    for (int i = 0; i < int(sizeof(F) / sizeof(float)); ++i)
        reinterpret_cast<float *>(&result)[i] =
            float_remainder(reinterpret_cast<const float *>(&a)[i], reinterpret_cast<const float *>(&b)[i]);
    return result;
}

LP_OPERATION(identity, a)
LP_OPERATION(negative, with_sign_bits(a, ~0u, 0x80000000u))
LP_OPERATION(absolute, with_sign_bits(a, 0x7fffffffu, 0u))
LP_OPERATION(relu, a <= constant<F>(0) ? constant<F>(0) : a)
LP_OPERATION(step, a > constant<F>(0) ? constant<F>(1) : constant<F>(0))
LP_OPERATION(square, a *a)
LP_OPERATION(reciprocal, 1.0f / a)
LP_OPERATION(sqrt, root(a))
LP_FUNCTION(rsqrt)
LP_FUNCTION(exp)
LP_FUNCTION(log)
LP_FUNCTION(tanh)
LP_FUNCTION(erf)
LP_FUNCTION(sigmoid)
LP_FUNCTION(sin)
LP_FUNCTION(cos)
LP_FUNCTION(gelu)
LP_FUNCTION(gelu_gradient)
LP_OPERATION(add, a + b)
LP_OPERATION(subtract, a - b)
LP_OPERATION(multiply, a *b)
LP_OPERATION(divide, a / b)
LP_OPERATION(maximum, unless_nan(b > a ? b : a, b))
LP_OPERATION(minimum, unless_nan(b < a ? b : a, b))
LP_OPERATION(greater, a > b ? constant<F>(1) : constant<F>(0))
LP_OPERATION(equal, a == b ? constant<F>(1) : constant<F>(0))
LP_OPERATION(select, a != constant<F>(0) ? b : c)
LP_OPERATION(scaled_add, a + (c * b))
LP_OPERATION(floor, whole_below(a))
LP_OPERATION(rint, whole(a))
LP_OPERATION(fmod, remainder(a, b))

// In the order of lowprec.elementwise.OPERATIONS, which names them to users.
// clang-format off
#define LP_OPERATIONS(X)                                                                                       \
    X(identity) X(negative) X(absolute) X(relu) X(step) X(square) X(reciprocal) X(sqrt) X(rsqrt) X(exp) X(log) \
    X(tanh) X(erf) X(sigmoid) X(sin) X(cos) X(gelu) X(gelu_gradient) X(add) X(subtract) X(multiply) X(divide)  \
    X(maximum) X(minimum) X(greater) X(equal) X(select) X(scaled_add) X(floor) X(rint) X(fmod)
// clang-format on

}  // namespace LP_ISA
}  // namespace lowprec
#endif
