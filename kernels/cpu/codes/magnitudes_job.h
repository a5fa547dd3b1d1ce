// Jobs that count what numbers are like, and what became of changes of them.
#ifndef LOWPREC_MAGNITUDES_JOB_H
#define LOWPREC_MAGNITUDES_JOB_H

#include "operands/operand.h"

namespace lowprec {

// Of 16-bit numbers the squares are added up for so many at a time, and these sums in order.
constexpr i64 sixteen_at_a_time = 1 << 16;

struct Numbers {
    const char *data;
    Element element;  // no table8
};

// Elements of an array that are `step` apart and go round at its end.
struct Sample {
    i64 size, count, step;
};

struct MagnitudesJob {
    Numbers x;
    float factor;  // of all numbers, in float32
    Sample sample;
    i64 *histogram;  // of 256 biased exponents, to which those of the sample are added
};

// What some numbers are like; of the finite ones, the sum of squares and the bits of the largest magnitude. The squares
// are added up in sixteen sums, of every sixteenth number each, and these in order: the same on every instruction set.
struct Magnitudes {
    i64 zeros, infinite, nan;
    double squares;
    u32 largest;
};

// base + scale * direction, which was to be put in the place of `before`, and what was put there. The change counts
// where it is finite and not zero in double and `before` is finite.
struct ChangesJob {
    Numbers base, direction, before, after;  // without base (no data) it is before
    double scale;
    Sample sample;
};

// How many elements were to change, and how many of these did not.
struct Changes {
    i64 wanted, lost;
};

}  // namespace lowprec
#endif
