// A vertex's place among the vertex axes.
#ifndef LOWPREC_VERTICES_H
#define LOWPREC_VERTICES_H

#include "product.h"

namespace lowprec {
inline namespace LP_ISA {

// Splits a flat vertex number into its index.
inline void unravel(i64 vertex, const i64 *shape, int axes, i64 *index) {
    for (int axis = axes - 1; axis >= 0; --axis) {
        index[axis] = vertex % shape[axis];
        vertex /= shape[axis];
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
