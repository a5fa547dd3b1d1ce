// Sums whose every addition is exact and rounded once, on the GPU: one thread per sum, in the order of its terms.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/columns.py):
//     LP_KIND  sequential_sum, running_sum, kahan_sum or pair_sum
//     LP_A, B  Codes<u8 u16>, Numbers<float double>: terms, and what they are multiplied by (Number: by nothing)
//     LP_MODE  rounding mode, or -1: additions are IEEE's own, in LP_TO
//     LP_TO    float or double, which holds the format
#include "operands.cuh"
#include "units.cuh"

#ifndef LP_KIND
#define LP_KIND kahan_sum
#define LP_A Codes<u16>
#define LP_B Number
#define LP_MODE stochastic
#define LP_TO float
#endif

namespace lowprec {

enum SumKind { sequential_sum, running_sum, kahan_sum, pair_sum };

// Sums of x, or x * y, (outer, size, inner) over the middle axis, into results (outer, results, inner).
struct ColumnJob {
    Rounding rounding;
    i64 outer, size, inner, block, results;
    i64 step[2][3];  // bytes along the three axes
    u64 key, offset;
    const void *data[2];
    double number[2];
    Format format[2];
};

inline namespace LP_ISA {

// One addition and its rounding.
struct Adder {
    IndexDraws draws;
#if LP_MODE < 0
    typedef LP_TO Sum;
    LP_INLINE explicit Adder(const ColumnJob &job) : draws(job.key, 0) {}
    LP_INLINE Sum plus(Sum a, Sum b, u64) { return a + b; }
    LP_INLINE float multiply_add(float a, float b, float sum, u64) { return __builtin_fmaf(a, b, sum); }
    LP_INLINE double multiply_add(double a, double b, double sum, u64) { return sum + a * b; }
#else
    typedef double Sum;
    Rounder<u64> rounder;
    LP_INLINE explicit Adder(const ColumnJob &job)
        : draws(job.key, job.rounding.random_bits), rounder(make_rounder<u64>(job.rounding, true)) {}
    LP_INLINE Sum plus(Sum a, Sum b, u64 index) {
        const Exact sum = sum_of(a, b);
        // No sum leaves double's range: products of values that float32 holds are below 2^256.
        const double odd = to_odd(signed_zero(sum.value, a, b, LP_MODE == down), sum.error);
        u64 random = 0;
        if (LP_MODE == stochastic) random = draws(index);
        return bit_cast<double>(round_bits<LP_MODE, true>(bit_cast<u64>(odd), random, rounder));
    }
    // Products of two values that float32 holds are exact.
    LP_INLINE Sum multiply_add(Sum a, Sum b, Sum sum, u64 index) { return plus(sum, a * b, index); }
#endif
};

LP_INLINE LP_TO stored(double sum) { return sum == sum ? LP_TO(sum) : LP_TO(bit_cast<double>(Carrier<u64>::nan)); }

typedef Reader<Adder::Sum, u64, LP_A> Terms;
typedef Reader<Adder::Sum, u64, LP_B> Factors;

LP_INLINE Adder::Sum kahan(const ColumnJob &job, Adder &add, const Terms &x, i64 at, u64 index) {
    Adder::Sum sum = 0, correction = 0;
    for (i64 k = 0; k < job.size; ++k, at += job.step[0][1], index += 4 * u64(job.inner)) {
        const Adder::Sum term = add.plus(x(at), -correction, index), next = add.plus(sum, term, index + 1),
                         gained = add.plus(next, -sum, index + 2);
        correction = add.plus(gained, -term, index + 3);
        sum = next;
    }
    return sum;
}

// Result number r of column (o, i): its terms begin at k.
LP_INLINE void column(const ColumnJob &job, Adder &add, const Terms &x, const Factors &y, i64 o, i64 r, i64 i,
                      LP_TO *to) {
    const i64 k = LP_KIND == sequential_sum ? r * job.block : LP_KIND == pair_sum ? 2 * r : 0;
    i64 at = o * job.step[0][0] + k * job.step[0][1] + i * job.step[0][2];
    i64 by = o * job.step[1][0] + k * job.step[1][1] + i * job.step[1][2];
    u64 index = job.offset + u64((o * job.size + k) * job.inner + i);
    LP_TO *result = to + (o * job.results + r) * job.inner + i;
    if (LP_KIND == pair_sum) {
        index = job.offset + u64((o * job.results + r) * job.inner + i);
        *result = stored(add.plus(x(at), x(at + job.step[0][1]), index));
    } else if (LP_KIND == kahan_sum) {
        *result = stored(kahan(job, add, x, at, 4 * index));
    } else {
        const i64 end = job.block < job.size - k ? k + job.block : job.size;
        Adder::Sum sum = 0;
        for (i64 n = k; n < end; ++n, at += job.step[0][1], by += job.step[1][1], index += u64(job.inner)) {
            sum = Factors::is_number ? add.plus(sum, x(at), index) : add.multiply_add(x(at), y(by), sum, index);
            if (LP_KIND == running_sum) result[n * job.inner] = stored(sum);
        }
        if (LP_KIND == sequential_sum) *result = stored(sum);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec

extern "C" __global__ void __launch_bounds__(256) lowprec_columns(lowprec::ColumnJob job, void *to) {
    using namespace lowprec;
    Adder add(job);
    const Terms x(job, 0);
    const Factors y(job, 1);
    const i64 each = LP_KIND == running_sum ? 1 : job.results, sums = job.outer * each * job.inner;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < sums; at += i64(gridDim.x) * blockDim.x) {
        const i64 line = at / job.inner, o = line / each;
        column(job, add, x, y, o, line - o * each, at - line * job.inner, static_cast<LP_TO *>(to));
    }
}
