// The job of exact arithmetic on elements.
#ifndef LOWPREC_EXACT_JOB_H
#define LOWPREC_EXACT_JOB_H

#include "lowprec/exact.h"
#include "operands/operand_runs.h"
#include "rounding/rounding_jobs.h"

namespace lowprec {

// One operation on doubles, rounded to a double by a mode (odd: to be rounded further) and then converted.
struct ExactJob : Operands {
    int operation, mode, down;
    int wide[3];     // operands that are doubles, not what `Element` says
    ConvertJob out;  // result element i is rounded with the random bits of index out.offset + i
    int item_bytes;  // of the result
    u8 *left;        // zeros, or null; becomes 1 where the element is left to the reference
};

enum ExactOutcome { nan_refused = 1, some_left = 2 };  // bits

}  // namespace lowprec
#endif
