// The operations of float32_op, by number, over arrays.
#ifndef LOWPREC_OPERATION_RUNS_H
#define LOWPREC_OPERATION_RUNS_H

#include "lowprec/elementwise.h"

namespace lowprec {
inline namespace LP_ISA {

#define LP_NUMBER(name) number_of_##name,
enum OperationNumber { LP_OPERATIONS(LP_NUMBER) };
#undef LP_NUMBER

// Float32 results of `count` elements of up to three operands.
typedef void (*Run)(const float *a, const float *b, const float *c, float *to, i64 count);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
