// The job of one float32_op call.
#ifndef LOWPREC_ELEMENTWISE_JOB_H
#define LOWPREC_ELEMENTWISE_JOB_H

#include "operands/operand_runs.h"
#include "rounding/rounding_jobs.h"

namespace lowprec {

struct ElementwiseJob : Operands {
    int operation;
    ConvertJob out;  // result element i is rounded with the random bits of index out.offset + i
    int item_bytes;  // of the result
    int plain;       // the result is the float32 itself
};

}  // namespace lowprec
#endif
