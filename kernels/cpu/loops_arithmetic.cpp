// Loops of exact arithmetic: one operation per element, and sums of columns.
#include "arithmetic.h"
#include "table.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

template <int operation, int mode>
bool exact_elements(const ExactJob &job, i64 begin, i64 end) {
    const double *a = job.operands[0], *b = job.operands[1], *c = job.operands[2];
    const int down = job.down;
    // No quotient and no root of doubles is midway between two; their `error` is not the difference that tells a tie.
    constexpr bool no_ties = operation == exact_divide || operation == exact_sqrt;
    constexpr int way = mode == nearest_away && no_ties ? int(nearest_even) : mode;
    u8 any = 0;
    for (i64 i = begin; i < end; ++i) {
        int left;
        double result = round_exact<way>(exact_result<operation>(a[i], b[i], c[i], down), left);
        job.to[i] = left ? 0.0 : result;
        job.left[i] = u8(left);
        any |= u8(left);
    }
    return any != 0;
}

template <int mode>
bool exact_in_mode(const ExactJob &job, i64 begin, i64 end) {
    switch (job.operation) {
        case exact_add:
            return exact_elements<exact_add, mode>(job, begin, end);
        case exact_subtract:
            return exact_elements<exact_subtract, mode>(job, begin, end);
        case exact_multiply:
            return exact_elements<exact_multiply, mode>(job, begin, end);
        case exact_divide:
            return exact_elements<exact_divide, mode>(job, begin, end);
        case exact_sqrt:
            return exact_elements<exact_sqrt, mode>(job, begin, end);
        default:
            return exact_elements<exact_fma, mode>(job, begin, end);
    }
}

bool exact(const ExactJob &job, i64 begin, i64 end) {
    switch (job.mode) {
        case nearest_even:
            return exact_in_mode<nearest_even>(job, begin, end);
        case nearest_away:
            return exact_in_mode<nearest_away>(job, begin, end);
        case toward_zero:
            return exact_in_mode<toward_zero>(job, begin, end);
        case up:
            return exact_in_mode<up>(job, begin, end);
        case down:
            return exact_in_mode<down>(job, begin, end);
        case stochastic:
            return exact_in_mode<stochastic>(job, begin, end);
        default:
            return exact_in_mode<odd>(job, begin, end);
    }
}

// ---- sums of columns ----

// The value of a sum on the format's grid.
template <int mode>
struct Grid {
    Rounder<u64> rounder;
    int ieee_double;

    explicit Grid(const ColumnJob &job)
        : rounder(make_rounder<u64>(job.rounding, true)), ieee_double(job.ieee_double) {}

    double operator()(Exact x, u64 random) const {
        if (ieee_double) return x.value;
        u64 bits = bit_cast<u64>(to_odd(x.value, finite(x.value) ? x.error : 0.0));
        return bit_cast<double>(round_bits<mode, true, u64>(bits, random, rounder));
    }
};

// Random bits of an element, at the top of 32.
struct Draws {
    const void *words;
    int wide, lift;

    explicit Draws(const ColumnJob &job)
        : words(job.random), wide(job.wide_random), lift(32 - job.rounding.random_bits) {}

    u64 operator()(i64 i) const {
        if (!words) return 0;
        u64 r = wide ? static_cast<const u32 *>(words)[i] : static_cast<const u16 *>(words)[i];
        return r << lift;
    }
};

LP_INLINE double term_at(const ColumnJob &job, i64 i) {
    return job.wide_terms ? static_cast<const double *>(job.x)[i] : double(static_cast<const float *>(job.x)[i]);
}

// a + b of numbers on the way of a sum: never so large that a double overflows.
template <int mode>
LP_INLINE Exact add_terms(double a, double b) {
    Exact x = exact_result<exact_add>(a, b, 0.0, mode == down);
    return x;
}

template <int mode>
void sum_column(const ColumnJob &job, i64 outer, i64 column, const Grid<mode> &grid) {
    const Draws random(job);
    const i64 blocks = (job.size + job.block - 1) / job.block;
    const i64 start = outer * job.size * job.inner + column;
    double sum = 0.0;
    for (i64 k = 0; k < job.size; ++k) {
        const i64 i = start + k * job.inner;
        double term = term_at(job, i);
        if (job.y) term *= double(job.y[i]);  // exact
        sum = grid(add_terms<mode>(sum, term), random(i));
        if (job.kind == running_sum) job.to[i] = sum;
        if (job.kind == plain_sum && ((k + 1) % job.block == 0 || k + 1 == job.size)) {
            job.to[(outer * blocks + k / job.block) * job.inner + column] = sum;
            sum = 0.0;
        }
    }
}

// Kahan's sum: the correction takes out of the next term what the last addition put in too much.
template <int mode>
void kahan_column(const ColumnJob &job, i64 outer, i64 column, const Grid<mode> &grid) {
    const Draws random(job);
    double sum = 0.0, correction = 0.0;
    for (i64 k = 0; k < job.size; ++k) {
        const i64 i = (outer * job.size + k) * job.inner + column;
        double term = grid(add_terms<mode>(term_at(job, i), -correction), random(4 * i));
        double next = grid(add_terms<mode>(sum, term), random(4 * i + 1));
        double gained = grid(add_terms<mode>(next, -sum), random(4 * i + 2));
        correction = grid(add_terms<mode>(gained, -term), random(4 * i + 3));
        sum = next;
    }
    job.to[outer * job.inner + column] = sum;
}

template <int mode>
void columns_in_mode(const ColumnJob &job, i64 begin, i64 end) {
    const Grid<mode> grid(job);
    for (i64 j = begin; j < end; ++j) {
        if (job.kind == kahan_sum)
            kahan_column<mode>(job, j / job.inner, j % job.inner, grid);
        else
            sum_column<mode>(job, j / job.inner, j % job.inner, grid);
    }
}

void columns(const ColumnJob &job, i64 begin, i64 end) {
    switch (job.rounding.mode) {
        case nearest_even:
            return columns_in_mode<nearest_even>(job, begin, end);
        case nearest_away:
            return columns_in_mode<nearest_away>(job, begin, end);
        case toward_zero:
            return columns_in_mode<toward_zero>(job, begin, end);
        case up:
            return columns_in_mode<up>(job, begin, end);
        case down:
            return columns_in_mode<down>(job, begin, end);
        case odd:
            return columns_in_mode<odd>(job, begin, end);
        default:
            return columns_in_mode<stochastic>(job, begin, end);
    }
}

}  // namespace

extern const ArithmeticTable arithmetic_table;
const ArithmeticTable arithmetic_table = {exact, columns};

}  // namespace LP_ISA
}  // namespace lowprec
