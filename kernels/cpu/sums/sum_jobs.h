// The jobs of sums and maxima: what one call of sum_parts, reduce_sum, scatter_add or reduce_max is, in numbers.
#ifndef LOWPREC_SUM_JOBS_H
#define LOWPREC_SUM_JOBS_H

#include "accumulate/accumulation.h"
#include "operands/vertices.h"

namespace lowprec {

// parts (P, v.., m, n) summed from the first one in float32, rounded once.
struct SumJob {
    Operand parts;  // `stride` over the vertex axes
    long part, row_stride, column_stride;
    Coordinate row, column, index, batch;
    Destination out;
    StepRounding step;
    int tag;
    u64 key;
    int axes;
    i64 shape[max_axes], parts_count, m, n;
};

// x (v.., m, k, n) summed over k: a chain per element in groups, in parts and stages as a product's.
// Where `order` is given, row r sums lines order[starts[r]], ... order[starts[r + 1] - 1] of x (v.., k, n) instead.
struct ReduceJob {
    Operand x;  // `stride` over the vertex axes
    long x_row, x_k, x_column;
    Coordinate row, column, first_group, batch;
    Destination out;
    StepRounding step, final;
    i64 group, part, run;
    int stages;
    u64 key;
    int axes;
    i64 shape[max_axes], m, n, k;
    const i64 *order, *starts;
    int random;  // some rounding is stochastic: vectors must lie on columns that share counters
};

constexpr i64 reduce_columns = 1024, reduce_rows = 64;  // sums of one row, or of one column, in a unit of work

// Units of work of one vertex: blocks of rows of a single column, else chunks of each row's columns.
inline i64 reduce_units(const ReduceJob &job) {
    if (job.n == 1 && !job.order) return (job.m + reduce_rows - 1) / reduce_rows;
    return job.m * ((job.n + (job.random ? 15 : 0) + reduce_columns - 1) / reduce_columns);
}

// The largest of x (m, k, n) over k: NaN wins, +0 is larger than -0.
struct MaximumJob {
    Operand x;
    long x_row, x_k, x_column;
    Destination out;
    i64 m, n, k;
};

}  // namespace lowprec
#endif
