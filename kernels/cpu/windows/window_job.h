// The job of convolutions whose groups have few channels and outputs: lanes are outputs of neighbouring groups.
#ifndef LOWPREC_WINDOW_JOB_H
#define LOWPREC_WINDOW_JOB_H

#include "accumulate/accumulation.h"

namespace lowprec {

// x (images, rows, columns, groups, channels) and weight (rows, columns, groups, channels, outputs): `stride` over
// these axes, in bytes; where lanes are of neighbouring groups the last of x and of the result is that of groups and
// what follows them as one axis. For a weight's gradient the result's gradient (images, rows, columns, groups, outputs)
// stands in the weight's place, and the result is a weight.
struct WindowJob {
    Operand x, weight;
    i64 image_size[2], kernel[2], stride[2], dilation[2];
    i64 front[2];  // zeros before the image; negative: so much of it is left out
    i64 images, count[2], groups, channels, outputs;
    Destination out;  // stride over images and rows (of a weight: rows, columns, channels) and, where lanes are of one
                      // group, groups; `column` to the next lane or output, `row` to the next window
    StepRounding step, final;
    i64 group;  // products between roundings, of one kernel position; of a weight's gradient, of all
    u64 key;
    u32 row, column, batch, first_group;
    i64 outer, inner;  // rows of random bits from one index to the next of the result's first and second axis
    int half_operands;
    bool lanes_are_windows;  // where lanes are of one group: neighbouring windows, not outputs
};

constexpr i64 window_lanes = 32;  // lanes of a unit of work: halves of a cache line

inline i64 lane_panels(const WindowJob &job) { return (job.groups * job.outputs + window_lanes - 1) / window_lanes; }

}  // namespace lowprec
#endif
