// The functions of functions_exact.h by short sequences of float32 operations. How far those are from the float32
// result is known for every float32 (tests/lowprec/test_quick_functions.py): by at most `steps` places of float32, of
// which each function says a few more.
//
// Polynomials are minimax fits, made by weighted least squares on Chebyshev nodes. Instruction sets with a fused
// multiply-add use it: these values may differ between them, results may not.
#ifndef LOWPREC_FUNCTIONS_FLOATS_H
#define LOWPREC_FUNCTIONS_FLOATS_H

#include "elementwise/real_lanes.h"
#include "lowprec/elementwise.h"

namespace lowprec {
inline namespace LP_ISA {

LP_INLINE f32v power_of_two(i32v n) { return bit_cast<f32v>((bit_cast<u32v>(n) + 127u) << 23); }

// exp(x + tail) for x in [-170, 90] and a small tail.
LP_INLINE f32v exp_of(f32v x, f32v tail) {
    const f32v shifted = mul_add(x, splat_real(log2_e), splat_real(to_integer)), k = shifted - to_integer;
    const f32v r = mul_add(k, splat_real(-ln2_low), mul_add(k, splat_real(-ln2_high), x)) + tail;
    const f32v fraction =
        polynomial(r, 0.00138368341f, 0.00837482233f, 0.0416682251f, 0.166664198f, 0.499999911f, 1.0f, 1.0f);
    const i32v n = bit_cast<i32v>(bit_cast<u32v>(shifted) - bit_cast<u32v>(splat_real(to_integer))), half = n >> 1;
    return fraction * power_of_two(half) * power_of_two(n - half);
}

struct quick_exp {
    static constexpr u32 steps = 3;
    static LP_INLINE f32v near(f32v x) { return exp_of(between(x, -105.0f, 89.0f), f32v{}); }
};

struct quick_log {
    static constexpr u32 steps = 4;
    static LP_INLINE f32v near(f32v x) {
        const i32v tiny = x < splat_real(0x1p-126f);
        const u32v bits = bit_cast<u32v>(tiny ? x * 0x1p23f : x);  // unsigned: those of negative numbers wrap
        const i32v exponent = bit_cast<i32v>(bits - 0x3f3504f3u) >> 23;
        const f32v f = bit_cast<f32v>(bits - (bit_cast<u32v>(exponent) << 23)) - 1.0f;
        const f32v e = __builtin_convertvector(tiny ? exponent - 23 : exponent, f32v);
        const f32v fit = polynomial(f, -0.0777801871f, 0.127773985f, -0.131140754f, 0.141961411f, -0.166270897f,
                                    0.200016364f, -0.250007778f, 0.333333254f, -0.49999997f);
        f32v y = mul_add(e, splat_real(ln2_high), f + mul_add(f * f, fit, e * ln2_low));
        y = x == splat_real(__builtin_inff()) ? x : y;
        y = x == f32v{} ? splat_real(-__builtin_inff()) : y;
        return x >= f32v{} ? y : splat_real(__builtin_nanf(""));
    }
};

struct quick_tanh {
    static constexpr u32 steps = 5;
    static LP_INLINE f32v near(f32v x) {
        const f32v a = size_of(x), square = a * a;
        const f32v large = 1.0f - 2.0f / (exp_of(at_most(a + a, 40.0f), f32v{}) + 1.0f);
        const f32v fit =
            polynomial(square, -0.00609634211f, 0.0209968295f, -0.0538507961f, 0.133327678f, -0.333333284f);
        const f32v small = mul_add(a * square, fit, a);
        return with_sign_of(a < splat_real(0.625f) ? small : large, x);
    }
};

struct quick_sigmoid {
    static constexpr u32 steps = 4;
    static LP_INLINE f32v near(f32v x) {
        const f32v e = exp_of(-at_most(size_of(x), 105.0f), f32v{});
        return (x < f32v{} ? e : splat_real(1.0f)) / (1.0f + e);
    }
};

struct quick_rsqrt {
    static constexpr u32 steps = 2;
    static LP_INLINE f32v near(f32v x) { return 1.0f / root(x); }
};

// exp(-z^2 / 2), and (1 - Phi(z)) over it, for z in [0, 15]. The square's rounding error is the exponential's tail.
struct Tail {
    f32v density, ratio;
};
#if defined(__FMA__)
LP_INLINE Tail normal_tail(f32v z) {
    const f32v square = z * z, density = exp_of(-0.5f * square, -0.5f * fused(z, z, -square));
    const f32v inverse = 1.0f / (z + 4.0f), t = fused(inverse, splat_real(-8.0f), splat_real(1.0f));
    const f32v fit = polynomial(t, -0.000134197442f, 0.000174657267f, 0.00156840822f, -0.0035102095f, -0.00752400421f,
                                0.0604034886f, -0.186523661f, 0.387136906f, -0.607896566f, 0.755285144f);
    return {density, fit * inverse};
}
#else
LP_INLINE Tail normal_tail(f32v z) {
    const f32v head = bit_cast<f32v>(bit_cast<u32v>(z) & 0xfffff000u);
    const f32v density = exp_of(-0.5f * (head * head), -0.5f * ((z - head) * (z + head)));
    const f32v t = (z - 4.0f) / (z + 4.0f);
    const f32v fit =
        polynomial(t, -7.19824748e-05f, -6.15435492e-05f, 0.000692214002f, -0.00030344064f, -0.00500394637f,
                   0.0179402269f, -0.0321973488f, 0.0285999682f, 0.0139996f, -0.0967034698f, 0.4720532f);
    return {density, fit / (1.0f + z)};
}
#endif

struct quick_erf {
    static constexpr u32 steps = 5;
    static LP_INLINE f32v near(f32v x) {
        const f32v a = size_of(x);
        const Tail tail = normal_tail(at_most(a * 1.41421356f, 15.0f));
        const f32v large = 1.0f - 2.0f * (tail.density * tail.ratio);
        const f32v small = a * polynomial(a * a, 7.85385782e-05f, -0.000801019254f, 0.00518832775f, -0.026853811f,
                                          0.112835854f, -0.37612626f, 1.12837911f);
        return with_sign_of(a < splat_real(1.0f) ? small : large, x);
    }
};

struct quick_gelu {
    static constexpr u32 steps = 7;
    static LP_INLINE f32v near(f32v x) {
        const f32v bounded = at_least(x, -15.0f);
        const Tail tail = normal_tail(at_most(size_of(bounded), 15.0f));
        const f32v lower = tail.density * (tail.ratio * bounded);  // in this order none is subnormal before the last
        return x < f32v{} ? lower : bounded * (1.0f - tail.density * tail.ratio);
    }
};

// Reduced up to 2^15; beyond it all that is known is that the result is in [-1, 1].
struct Reduced {
    u32v turns;
    f32v rest;
};
#if defined(__FMA__)
LP_INLINE Reduced quarter_turns(f32v x) {
    const f32v shifted = fused(x, splat_real(0x1.45f306p-1f), splat_real(to_integer)), k = -(shifted - to_integer);
    const f32v near = fused(k, splat_real(0x1.921fb6p+0f), x);  // exact
    const f32v rest = fused(k, splat_real(-0x1.ee59dap-50f), fused(k, splat_real(-0x1.777a5cp-25f), near));
    return {bit_cast<u32v>(shifted), x == f32v{} ? x : rest};  // zeros keep their sign
}
#else
LP_INLINE Reduced quarter_turns(f32v x) {
    f32half part[2];
    __builtin_memcpy(part, &x, sizeof x);
    alignas(64) u32 turns[lanes32];
    alignas(64) float rest[lanes32];
    for (int i = 0; i < 2; ++i) {
        const f64v wide = __builtin_convertvector(part[i], f64v);
        const f64v shifted = wide * TWO_OVER_PI + SHIFT, k = shifted - SHIFT;
        const f64v r = (wide - k * 0x1.921fb54400000p+0) - k * 0x1.0b4611a600000p-34;
        typedef u32 u32half __attribute__((vector_size(LP_VECTOR_BYTES / 2)));
        store(rest + i * lanes32 / 2, __builtin_convertvector(r, f32half));
        store(turns + i * lanes32 / 2, __builtin_convertvector(bit_cast<u64v>(shifted), u32half));
    }
    return {load<u32v>(turns), load<f32v>(rest)};
}
#endif

template <u32 quadrant>
struct quick_sine {
    static constexpr u32 steps = 4;
    // Within that up to 2^15.
    static LP_INLINE f32v near(f32v x) {
        const Reduced reduced = quarter_turns(x);
        const u32v turns = reduced.turns + quadrant;
        const f32v r = reduced.rest, square = r * r;
        const f32v sine = r * polynomial(square, -0.000195011438f, 0.00833201129f, -0.166666508f, 1.0f);
        const f32v cosine =
            mul_add(square, polynomial(square, 2.43718114e-05f, -0.0013886519f, 0.041666612f, -0.5f), splat_real(1.0f));
        const f32v y = (i32v)(turns << 31) != 0 ? cosine : sine;
        return bit_cast<f32v>(bit_cast<u32v>(y) ^ ((turns & 2) << 30));
    }
};
typedef quick_sine<0> quick_sin;
typedef quick_sine<1> quick_cos;

}  // namespace LP_ISA
}  // namespace lowprec
#endif
