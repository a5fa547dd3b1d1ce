// What the jobs of products and of sums share: how sums are rounded, and where results go.
#ifndef LOWPREC_ACCUMULATION_H
#define LOWPREC_ACCUMULATION_H

#include "operands/operand.h"
#include "rounding/rounding_jobs.h"

namespace lowprec {

// How a sum is rounded: to `rounding` where `active`, with random bits from `key` under the given tags.
struct StepRounding {
    Rounding rounding;
    int active;  // 0: float32 itself, nothing to do
    int wide;    // needs 64-bit lanes
};

// Where results go: coded storage, or float32 as it is.
struct Destination {
    Rounding store;  // exact conversion to the stored format
    Storage storage;
    int item_bytes;
    char *data;
    long stride[max_axes];  // bytes, over the vertex axes
    long row, column;       // bytes
    bool *nan_met;          // where the format has no NaN: set when one should be stored
};

}  // namespace lowprec
#endif
