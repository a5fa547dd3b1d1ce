// A vertex's place among the vertex axes, and numbers that each vertex has.
#ifndef LOWPREC_VERTICES_H
#define LOWPREC_VERTICES_H

#include "operands/operand.h"

namespace lowprec {

// An integer per vertex: base, plus index times stride over the vertex axes, or looked up at that offset of `data`.
struct Coordinate {
    const char *data;  // null: the sum itself is the number; else strides are bytes
    i64 base;
    i64 stride[max_axes];

    i64 at(const i64 *index, int axes) const {
        i64 sum = 0;
        for (int axis = 0; axis < axes; ++axis) sum += index[axis] * stride[axis];
        if (!data) return base + sum;
        i64 number;
        __builtin_memcpy(&number, data + sum, sizeof number);  // at any address
        return number;
    }
};

// Splits a flat vertex number into its index.
inline void unravel(i64 vertex, const i64 *shape, int axes, i64 *index) {
    for (int axis = axes - 1; axis >= 0; --axis) {
        index[axis] = vertex % shape[axis];
        vertex /= shape[axis];
    }
}

}  // namespace lowprec
#endif
