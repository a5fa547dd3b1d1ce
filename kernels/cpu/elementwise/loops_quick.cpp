// Brackets of the functions of math.h: a few places of float32 around their quick values, which are known to be nearer
// than that (tests/lowprec/test_quick_functions.py).
#include "elementwise/operation_runs.h"
#include "elementwise/quick.h"
#include "elementwise/quick_functions.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

struct Bracket {
    f32v low, high;
};

// So many steps of float32 around y, which has the result's sign. Infinities are not taken for granted.
template <u32 steps>
LP_INLINE Bracket around(f32v y) {
    const u32v bits = bit_cast<u32v>(y), magnitude = bits & 0x7fffffffu, sign = bits ^ magnitude;
    const u32v infinity = u32v{} + 0x7f800000u;
    const u32v high = smaller(magnitude + steps, larger(magnitude, infinity));
    const u32v low = larger(magnitude, u32v{} + steps) - steps;  // NaN stays: the machine's own are far from infinity
    return {bit_cast<f32v>(low | sign), bit_cast<f32v>(high | sign)};
}

template <class Quick>
struct around_quick {
    static LP_INLINE Bracket of(f32v x) { return around<Quick::steps>(Quick::near(x)); }
};

// Near the function's zero the error is not relative to the result, but to the two terms that cancel.
struct quick_gelu_gradient {
    static LP_INLINE Bracket of(f32v x) {
        const f32v z = at_most(size_of(x), 15.0f);
        const Tail tail = normal_tail(z);
        const f32v slope = z * 0.398942280f;
        const f32v lower = tail.density * (tail.ratio - slope);
        const f32v y = x < f32v{} ? lower : 1.0f - lower;
        const f32v scale = tail.density * (tail.ratio + slope) + (x < f32v{} ? f32v{} : splat_real(1.0f));
        const f32v error = mul_add(scale, splat_real(0x1p-21f), splat_real(0x1p-147f));
        return {y - error, y + error};
    }
};

// Beyond 2^15 all that is known is that the result is in [-1, 1].
template <class Quick>
struct around_sine {
    static LP_INLINE Bracket of(f32v x) {
        Bracket near = around<Quick::steps>(Quick::near(x));
        const f32v nothing = x - x;  // NaN for infinities and NaN
        const i32v far = size_of(x) > splat_real(32768.0f);
        near.low = far ? nothing - 1.0f : near.low;
        near.high = far ? nothing + 1.0f : near.high;
        near.low = nothing == nothing ? near.low : nothing;
        near.high = nothing == nothing ? near.high : nothing;
        return near;
    }
};

template <class Function>
void brackets(const float *x, float *low, float *high, i64 count) {
    for (i64 i = 0; i < count; i += lanes32) {
        const Bracket b = Function::of(load<f32v>(x + i));
        store(low + i, b.low);
        store(high + i, b.high);
    }
}

}  // namespace

Brackets brackets_of(int operation) {
#define LP_BRACKETS(name, way) \
    case number_of_##name:     \
        return brackets<way>;
    switch (operation) {
        LP_BRACKETS(exp, around_quick<quick_exp>)
        LP_BRACKETS(log, around_quick<quick_log>)
        LP_BRACKETS(tanh, around_quick<quick_tanh>)
        LP_BRACKETS(sigmoid, around_quick<quick_sigmoid>)
        LP_BRACKETS(rsqrt, around_quick<quick_rsqrt>)
        LP_BRACKETS(erf, around_quick<quick_erf>)
        LP_BRACKETS(gelu, around_quick<quick_gelu>)
        LP_BRACKETS(gelu_gradient, quick_gelu_gradient)
        LP_BRACKETS(sin, around_sine<quick_sin>)
        LP_BRACKETS(cos, around_sine<quick_cos>)
        default:
            return nullptr;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
