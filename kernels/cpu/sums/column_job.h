// The job of sums of columns: every addition exact, then rounded once.
#ifndef LOWPREC_COLUMN_JOB_H
#define LOWPREC_COLUMN_JOB_H

#include "lowprec/round.h"
#include "operands/operand.h"

namespace lowprec {

enum SumKind { plain_sum, running_sum, kahan_sum, pair_sum };

// An axis of a job of sums: its length and what a step along it is, in bytes of x and y, in elements of the result and
// in indices of random bits.
struct SumAxis {
    i64 size;
    long x, y;
    i64 to, index;
};

// Sums over the terms of x, or of x * y; every step exact, then rounded once, from +0 (a pair's: from its first term).
// A running sum stores every step; the others one result.
struct ColumnJob {
    Rounding rounding;
    int kind;
    int ieee;      // the format is float32 or (wide) float64 with IEEE's own rounding to nearest even
    int wide;      // terms and results of this format are doubles; else results are floats, terms decoded to floats
    Operand x, y;  // without strides; no data: no factor
    SumAxis terms, lane, outer[2];
    void *to;
    u64 key, index;  // random bits of the first element are those of this index (Kahan's: of four times this, ...)
};

constexpr i64 column_lanes = 64;  // sums side by side in a unit of work

inline i64 column_units(const ColumnJob &job) {
    return job.outer[0].size * job.outer[1].size * ((job.lane.size + column_lanes - 1) / column_lanes);
}

}  // namespace lowprec
#endif
