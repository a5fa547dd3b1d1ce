// Jobs of exact arithmetic: elements, and sums of columns.
#ifndef LOWPREC_ARITHMETIC_H
#define LOWPREC_ARITHMETIC_H

#include "lowprec/exact.h"

namespace lowprec {

// One operation on doubles, rounded to a double by a mode (odd: to be rounded further).
struct ExactJob {
    int operation, mode;
    int down;  // the sign of zero sums
    const double *operands[3];
    double *to;
    u8 *left;  // 1 where the element is left to the reference
};

enum SumKind { plain_sum, running_sum, kahan_sum };

// Sums over k of x (outer, size, inner), or of x * y; every step exact, then rounded once. A sum of `block` terms
// starts at +0; its value goes to (outer, blocks, inner). A running sum stores every step, (outer, size, inner).
struct ColumnJob {
    Rounding rounding;
    int kind, ieee_double;  // ieee_double: the format is float64, rounded to nearest even
    i64 size, inner, block;
    const void *x;   // double where wide_terms, else float
    const float *y;  // may be null
    int wide_terms;
    int wide_random;     // u32, else u16
    const void *random;  // of x's shape; Kahan's four of an element lie together
    double *to;
};

struct ArithmeticTable {
    bool (*exact)(const ExactJob &, i64 begin, i64 end);  // true where an element is left
    void (*columns)(const ColumnJob &, i64 begin, i64 end);
};

}  // namespace lowprec
#endif
