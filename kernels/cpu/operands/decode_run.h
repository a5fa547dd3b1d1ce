// Runs of stored elements to float32.
#ifndef LOWPREC_DECODE_RUN_H
#define LOWPREC_DECODE_RUN_H

#include "isa/lanes.h"
#include "operands/operand.h"

namespace lowprec {
inline namespace LP_ISA {

// `count` elements from `from`, `stride` bytes apart, to contiguous floats.
void decode_run(Element element, const CodeTable *table, const char *from, long stride, float *to, i64 count);

// As many such runs as `rows`, which begin `row` bytes apart, to rows that begin `to_row` floats apart.
void decode_rows(Element element, const CodeTable *table, const char *from, long row, long stride, float *to,
                 i64 to_row, i64 rows, i64 count);

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
// Codes one after the other, through a table whose values are their upper halves.
void decode_codes(const CodeTable *table, const char *from, float *to, i64 count);
#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
