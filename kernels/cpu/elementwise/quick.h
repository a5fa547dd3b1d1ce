// Brackets of functions: two floats between which the float32 result lies, at a fraction of its cost.
#ifndef LOWPREC_QUICK_H
#define LOWPREC_QUICK_H

#include "lowprec/bits.h"

namespace lowprec {
inline namespace LP_ISA {

// For x[i], i < count (a multiple of a vector): low[i] and high[i], on either side of the result, or the result itself.
// Of a negative result `low` is the lesser magnitude. NaN stands in both where the result is NaN, and only there.
typedef void (*Brackets)(const float *x, float *low, float *high, i64 count);

// Null where an operation has no such brackets.
Brackets brackets_of(int operation);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
