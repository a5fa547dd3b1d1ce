// The jobs of products and sums: what one call of matmul, matmul_part, sum_parts or reduce is, in numbers.
#ifndef LOWPREC_PRODUCT_H
#define LOWPREC_PRODUCT_H

#include "operand.h"
#include "table.h"

namespace lowprec {

enum class Adder { sequential, dot4, pairwise };

// An integer per vertex: base, plus index times stride over the vertex axes, or looked up at that offset of `data`.
struct Coordinate {
    const char *data;  // null: the sum itself is the number; else strides are bytes
    i64 base;
    i64 stride[max_axes];

    i64 at(const i64 *index, int axes) const {
        i64 sum = 0;
        for (int axis = 0; axis < axes; ++axis) sum += index[axis] * stride[axis];
        return data ? *reinterpret_cast<const i64 *>(data + sum) : base + sum;
    }
};

// How a sum is rounded: to `rounding` where `active`, with random bits from `key` under the given tags.
struct Step {
    Rounding rounding;
    int active;  // 0: float32 itself, nothing to do
    int wide;    // needs 64-bit lanes
};

// Where results go: coded storage, or float32 as it is.
struct Target {
    Rounding store;  // exact conversion to the stored format
    Storage storage;
    int item_bytes;
    char *data;
    long stride[max_axes];  // bytes, over the vertex axes
    long row, column;       // bytes
    bool *nan_met;          // where the format has no NaN: set when one should be stored
};

// One product (or one chain of it) per vertex: a (m, k) times b (k, n).
struct ProductJob {
    Operand a, b;  // `stride` over the vertex axes
    long a_row, a_k, b_k, b_column;
    Operand initial;  // what chains start from, (m, n) per vertex; no data: +0
    long initial_row, initial_column;
    Coordinate row, column, first_group, batch;
    Target out;
    Step step, final;
    Adder adder;
    i64 group, part;  // products between roundings; products of one part (a multiple of group)
    int stages;
    u64 key;
    int half_operands;  // products of operands are exact in float32
    int axes;
    i64 shape[max_axes], m, n, k;
};

// Rectangle of the result and range of vertices one call works on.
struct Region {
    i64 vertex_begin, vertex_end, row_begin, row_end, column_begin, column_end;
};

// parts (P, v.., m, n) summed from the first one in float32, rounded once.
struct SumJob {
    Operand parts;  // `stride` over the vertex axes
    long part, row_stride, column_stride;
    Coordinate row, column, index, batch;
    Target out;
    Step step;
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
    Target out;
    Step step, final;
    i64 group, part;
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
    Target out;
    i64 m, n, k;
};

}  // namespace lowprec
#endif
