// Loops of exact arithmetic: one operation per element.
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

}  // namespace

void columns(const ColumnJob &job, i64 begin, i64 end);  // loops_columns.cpp

extern const ArithmeticTable arithmetic_table;
const ArithmeticTable arithmetic_table = {exact, columns};

}  // namespace LP_ISA
}  // namespace lowprec
