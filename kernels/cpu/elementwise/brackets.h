// Brackets of functions: two floats between which the float32 result lies, at a fraction of its cost.
#ifndef LOWPREC_BRACKETS_H
#define LOWPREC_BRACKETS_H

#include "elementwise/elementwise_job.h"
#include "elementwise/operation_runs.h"

namespace lowprec {
inline namespace LP_ISA {

// For x[i], i < count (a multiple of a vector): low[i] and high[i], on either side of the result, or the result itself.
// Of a negative result `low` is the lesser magnitude. NaN stands in both where the result is NaN, and only there.
typedef void (*Brackets)(const float *x, float *low, float *high, i64 count);

// Null where an operation has no such brackets, or they do not serve the job.
Brackets brackets_of(int operation);
Brackets brackets_for(const ElementwiseJob &job);

// Elements [begin, end), by `shortly` where the brackets do not tell. True where a NaN met a format that has none.
bool elementwise_by_brackets(const ElementwiseJob &job, Brackets brackets, Run shortly, i64 begin, i64 end);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
