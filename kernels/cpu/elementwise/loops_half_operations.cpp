// The operations of float32_op on float16 arrays with float16 results: in registers from one to the other.
#include "elementwise/elementwise_job.h"
#include "elementwise/half_functions.h"
#include "elementwise/half_runs.h"
#include "elementwise/operation_runs.h"
#include "elementwise/vector_runs.h"
#include "isa/fast_paths.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

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

}  // namespace

bool elementwise_of_halves(const ElementwiseJob &job, i64 begin, i64 end) {
    if (job.plain || !takes(FastPath::float16_nearest) || !halves_only(job, job.out)) return false;
    const HalfRun run = half_run_of(job.operation);
    if (run) run_halves(job, run, job.out.to, begin, end);
    return run != nullptr;
}

}  // namespace LP_ISA
}  // namespace lowprec
