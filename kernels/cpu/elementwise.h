// The job of one float32_op call.
#ifndef LOWPREC_CPU_ELEMENTWISE_H
#define LOWPREC_CPU_ELEMENTWISE_H

#include "operand.h"
#include "table.h"

namespace lowprec {

struct ElementwiseJob {
    int operation, operands, axes;
    i64 shape[max_axes];  // of the result; the operands' strides follow it, 0 where they are broadcast
    Operand operand[3];
    ConvertJob out;  // result element i is rounded with the random bits of index out.offset + i
    int item_bytes;  // of the result
    int plain;       // the result is the float32 itself
    int half;        // the result is IEEE float16, nearest-even: 1 with infinities, 2 saturating everything
};

}  // namespace lowprec
#endif
