// Operands that are broadcast together, cut into runs along their innermost axis.
#ifndef LOWPREC_OPERAND_RUNS_H
#define LOWPREC_OPERAND_RUNS_H

#include "operands/operand.h"

namespace lowprec {

// Up to three operands over the axes of their result; strides are 0 where an operand is broadcast.
struct Operands {
    int operands, axes;
    i64 shape[max_axes];  // of the result
    Operand operand[3];
};

inline namespace LP_ISA {

// f(at, stride, done, length) for every run of elements [begin, begin + count), in the result's order: the run's
// `length` elements lie `stride` bytes apart from `at` on and follow `done` others.
template <class F>
LP_INLINE void for_runs(const Operands &job, const Operand &from, i64 begin, i64 count, const F &f) {
    const int inner = job.axes - 1;
    if (inner < 0) return f(from.data, 0, 0, count);
    if (inner == 0) return f(from.data + begin * from.stride[0], from.stride[0], 0, count);
    i64 index[max_axes], rest = begin;
    const char *row = from.data;
    for (int axis = inner; axis >= 0; --axis) {
        index[axis] = rest % job.shape[axis];
        rest /= job.shape[axis];
        if (axis != inner) row += index[axis] * from.stride[axis];
    }
    for (i64 done = 0; done < count;) {
        const i64 left = job.shape[inner] - index[inner], length = left < count - done ? left : count - done;
        f(row + index[inner] * from.stride[inner], from.stride[inner], done, length);
        done += length;
        index[inner] = 0;
        for (int axis = inner - 1; axis >= 0; --axis) {
            row += from.stride[axis];
            if (++index[axis] < job.shape[axis]) break;
            row -= job.shape[axis] * from.stride[axis];
            index[axis] = 0;
        }
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
