// The job of products: what one call of matmul or matmul_part is, in numbers.
#ifndef LOWPREC_PRODUCT_JOB_H
#define LOWPREC_PRODUCT_JOB_H

#include "accumulate/accumulation.h"
#include "operands/vertices.h"

namespace lowprec {

enum class Adder { sequential, dot4, pairwise, aligned };

// What the aligned adder knows: places that terms keep behind the largest exponent, and the exponents of the operands'
// smallest normal numbers.
struct Alignment {
    int bits, a_least, b_least;
};

// One product (or one chain of it) per vertex: a (m, k) times b (k, n).
struct ProductJob {
    Operand a, b;  // `stride` over the vertex axes
    long a_row, a_k, b_k, b_column;
    Operand initial;  // what chains start from, (m, n) per vertex; no data: +0
    long initial_row, initial_column;
    Coordinate row, column, first_group, batch;
    Destination out;
    StepRounding step, final;
    Adder adder;
    Alignment alignment;
    i64 group, part;  // products between roundings; products of one part (a multiple of group)
    i64 run;          // parts that all stages but the last sum
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

}  // namespace lowprec
#endif
