// The operations of float32_op on float16 arrays with float16 results: in registers from one to the other.
#include "elementwise/elementwise_job.h"
#include "elementwise/half_functions.h"
#include "elementwise/half_runs.h"
#include "elementwise/operation_runs.h"
#include "elementwise/quick_functions.h"
#include "elementwise/random_halves.h"
#include "elementwise/vector_runs.h"
#include "isa/fast_paths.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

// ---- nearest-even ----

template <class Operation>
struct of_reals {
    static LP_INLINE f32v of(f32v a, f32v b, f32v c) { return Operation::apply(a, b, c); }
};
template <class Function>
struct of_one {
    static LP_INLINE f32v of(f32v a, f32v, f32v) { return Function::of(a); }
};

// The sign turned over, but for NaN, of which there is one.
template <class Codes>
LP_INLINE Codes negated(Codes x) {
    const Codes size = x & 0x7fffu;
    return (Codes)(size > 0x7c00u ? Codes{} + 0x7e00u : x ^ 0x8000u);
}

// On the codes themselves: by way of float32 a call in the caches took half as long again.
void negate_halves(const char *a, const char *, const char *, char *to, i64 count) {
    typedef u16 wide __attribute__((vector_size(LP_VECTOR_BYTES)));
    const auto up_to = [&](i64 i, i64 end) {
        for (; i + lanes32 <= end; i += lanes32) store(to + 2 * i, negated(load<u16v>(a + 2 * i)));
        if (i < end) store_some(to + 2 * i, negated(load_some<u16v>(a + 2 * i, end - i)), end - i);
    };
    i64 i = elements_before_line(to, 2, count);
    up_to(0, i);
    for (; i + 2 * lanes32 <= count; i += 2 * lanes32) store(to + 2 * i, negated(load<wide>(a + 2 * i)));
    up_to(i, count);
}

// Null where there is none: few operations take longer than what they read and write.
HalfRun half_run_of(int operation) {
#define LP_HALF(name)      \
    case number_of_##name: \
        return run_halves<of_reals<name##_operation>>;
#define LP_HALF_FUNCTION(name) \
    case number_of_##name:     \
        return run_halves<of_one<half_##name>>;
    if (operation == number_of_negative) return negate_halves;
    switch (operation) {
        LP_HALF(relu)
        LP_HALF(square)
        LP_HALF(add)
        LP_HALF(subtract)
        LP_HALF(multiply)
        LP_HALF(maximum)
        LP_HALF(minimum)
        LP_HALF(scaled_add)
#if defined(__F16C__) && defined(__FMA__)
        LP_HALF_FUNCTION(exp)
        LP_HALF_FUNCTION(log)
        LP_HALF_FUNCTION(tanh)
        LP_HALF_FUNCTION(sigmoid)
        LP_HALF_FUNCTION(rsqrt)
        LP_HALF_FUNCTION(erf)
        LP_HALF_FUNCTION(gelu)
        LP_HALF_FUNCTION(sin)
        LP_HALF_FUNCTION(cos)
#endif
        default:
            return nullptr;
    }
}

// ---- stochastically ----

template <class Operation>
struct certain {
    static constexpr u32 steps = 0;
    static LP_INLINE f32v of(f32v a, f32v b, f32v c) { return Operation::apply(a, b, c); }
};

// Of float16 numbers a function's quick value is nearer than of others, and beyond 2^15 as near.
template <class Quick, int operation, u32 steps_>
struct quickly {
    static constexpr u32 steps = steps_;
    static LP_INLINE f32v of(f32v a, f32v, f32v) { return Quick::near(a); }
    static void settle(const float *a, const float *, const float *, double *to) {
        alignas(64) float result[lanes32];
        run_of(operation)(a, a, a, result, lanes32);
        for (int i = 0; i < lanes32; ++i) to[i] = result[i];
    }
};

// The functions for float16 that are near enough in float32, too.
#if defined(__F16C__) && defined(__FMA__)
template <class Half>
struct as_quick {
    static LP_INLINE f32v near(f32v x) { return Half::of(x); }
};
typedef as_quick<half_log> near_log;
typedef as_quick<half_sin> near_sin;
typedef as_quick<half_cos> near_cos;
typedef as_quick<near_half_tanh> near_tanh;
typedef as_quick<near_half_erf> near_erf;
constexpr u32 tanh_steps = 4;
#else
typedef quick_log near_log;
typedef quick_sin near_sin;
typedef quick_cos near_cos;
typedef quick_tanh near_tanh;
typedef quick_erf near_erf;
constexpr u32 tanh_steps = 2;
#endif
typedef quick_rsqrt near_rsqrt;
typedef quick_exp near_exp;
typedef quick_sigmoid near_sigmoid;
typedef quick_gelu near_gelu;

struct RandomHalfWay {
    RandomHalfRun run;
    i64 (*beyond_margin)();
};

RandomHalfWay random_half_way_of(int operation) {
#define LP_CERTAIN(name)   \
    case number_of_##name: \
        return {run_random_halves<certain<name##_operation>>, nullptr};
#define LP_QUICKLY(name, steps)                                                   \
    case number_of_##name:                                                        \
        return {run_random_halves<quickly<near_##name, number_of_##name, steps>>, \
                halves_beyond_margin<quickly<near_##name, number_of_##name, steps>>};
    switch (operation) {
        LP_CERTAIN(square)
        LP_CERTAIN(reciprocal)
        LP_CERTAIN(sqrt)
        LP_CERTAIN(add)
        LP_CERTAIN(subtract)
        LP_CERTAIN(multiply)
        LP_CERTAIN(divide)
        LP_CERTAIN(scaled_add)
        LP_QUICKLY(rsqrt, 2)
        LP_QUICKLY(exp, 2)
        LP_QUICKLY(log, 2)
        LP_QUICKLY(tanh, tanh_steps)
        LP_QUICKLY(erf, 4)
        LP_QUICKLY(sigmoid, 4)
        LP_QUICKLY(gelu, 7)
        LP_QUICKLY(sin, 4)
        LP_QUICKLY(cos, 4)
        default:
            return {nullptr, nullptr};
    }
}

}  // namespace

bool elementwise_of_halves(const ElementwiseJob &job, i64 begin, i64 end) {
    if (job.plain) return false;
    const bool to_nearest = takes(FastPath::float16_nearest) && halves_only(job, job.out);
    const HalfRun nearest = to_nearest ? half_run_of(job.operation) : nullptr;
    if (nearest) run_halves(job, nearest, job.out.to, begin, end);
    if (nearest || !random_half(job.out) || !halves_only(job)) return nearest != nullptr;
    if (!takes(FastPath::float16_random)) return false;
    const RandomHalfRun run = random_half_way_of(job.operation).run;
    if (run) run_random_halves(job, run, job.out, begin, end);
    return run != nullptr;
}

i64 halves_beyond_margin(int operation) {
    const RandomHalfWay way = random_half_way_of(operation);
    return way.beyond_margin ? way.beyond_margin() : -1;
}

}  // namespace LP_ISA
}  // namespace lowprec
