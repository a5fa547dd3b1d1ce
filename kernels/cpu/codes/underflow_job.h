// Jobs that compute again, in double, the elements of a result that are zero.
#ifndef LOWPREC_UNDERFLOW_JOB_H
#define LOWPREC_UNDERFLOW_JOB_H

#include "codes/magnitudes_job.h"

namespace lowprec {

// An operand seen at the elements of the result, at any strides; without data one number.
struct Term {
    Numbers x;
    double number;
    i64 stride[max_axes];  // bytes, along the axes of the result
    i64 step;              // and along that of the sum
};

enum class Ideal { product, quotient, sum };  // of x y over the terms; x / y; x + scale y

struct UnderflowJob {
    Numbers result;  // in C order
    i64 size;
    int axes;
    i64 shape[max_axes];
    Ideal ideal;
    Term left, right;
    double scale;
    i64 terms;
    i64 zeros, count;  // how many zeros there are, and how many of them, spread over all, are computed again
};

// The place among the zeros of the one that is computed again as number k: one from each of `count` runs, at places in
// these that have no period.
inline i64 chosen_zero(i64 k, i64 zeros, i64 count) {
    const i64 first = k * zeros / count, length = (k + 1) * zeros / count - first;
    const double turn = double(k) * 0.6180339887498949;
    return first + i64((turn - double(i64(turn))) * double(length));
}

}  // namespace lowprec
#endif
