// The left operand of a product, decoded to float32 in blocks of rows.
#ifndef LOWPREC_LEFT_OPERAND_H
#define LOWPREC_LEFT_OPERAND_H

#include "product/operand_panels.h"
#include "product/product_job.h"
#include "product/scratch.h"

namespace lowprec {
inline namespace LP_ISA {

struct Left {
    const float *data;
    i64 row, k;  // floats from one to the next
    bool along_k;

    u32 largest(i64 rows, i64 count) const {
        return along_k ? largest_of(data, rows, row, count) : largest_of(data, count, k, rows);
    }
};

// Whether neighbours in memory are of one row.
inline bool left_along_k(const ProductJob &job) {
    const int bytes = bytes_of(job.a.element);
    return job.a_row != bytes || job.a_k == bytes;
}

class LeftOperand {
  public:
    LeftOperand(const ProductJob &j, Scratch &room) : job(j), scratch(room) {}

    // Rows from `a` on; as they are where that is float32. `whole`: all of a vertex, kept for the next one.
    Left block(const char *a, i64 rows, bool whole) {
        const int bytes = bytes_of(job.a.element);
        const bool aligned = (reinterpret_cast<u64>(a) | u64(job.a_row)) % sizeof(float) == 0;
        if (job.a.element == Element::real32 && job.a_k == 4 && aligned)
            return {reinterpret_cast<const float *>(a), job.a_row / 4, 1, true};
        const bool along_k = left_along_k(job);
        const i64 line = along_k ? ((job.k + 15) & ~i64(15)) + 16 : ((rows + 15) & ~i64(15)) + 16;
        float *to = scratch.of(line * (along_k ? rows : job.k));
        const Left left = {to, along_k ? line : 1, along_k ? 1 : line, along_k};
        if (whole && a == decoded) return left;
        decoded = whole ? a : nullptr;
        const i64 outer = along_k ? rows : job.k, inner = along_k ? job.k : rows;
        const long outer_stride = along_k ? job.a_row : job.a_k, inner_stride = along_k ? job.a_k : job.a_row;
        const PanelShape shape = {outer, 0, inner, (inner + lanes32 - 1) / lanes32 * lanes32, line};
        if (inner_stride == bytes && pack_rows_of_kind(job.a.element, a, outer_stride, shape, to)) return left;
        decode_rows(job.a.element, job.a.table, a, outer_stride, inner_stride, to, line, outer, inner);
        return left;
    }

  private:
    const ProductJob &job;
    Scratch &scratch;
    const char *decoded = nullptr;
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
