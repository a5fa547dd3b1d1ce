// Where the operands and the result of each vertex of a product lie, and its place among random words.
#ifndef LOWPREC_VERTEX_H
#define LOWPREC_VERTEX_H

#include "product/product_job.h"

namespace lowprec {
inline namespace LP_ISA {

inline bool is_random(const StepRounding &step) { return step.active && step.rounding.mode == stochastic; }
inline bool draws_words(const ProductJob &job) { return is_random(job.step) || is_random(job.final); }

struct Vertex {
    const char *a, *b, *initial;  // of the region's first element, as is
    char *out;
    u32 batch, row, column, group;  // set where random words are drawn
};

// visit(vertex) for those of the region, in C order.
template <class Visit>
void each_vertex(const ProductJob &job, const Region &region, const Visit &visit) {
    const bool random = draws_words(job);
    i64 index[max_axes];
    unravel(region.vertex_begin, job.shape, job.axes, index);
    for (i64 v = region.vertex_begin; v < region.vertex_end; ++v) {
        Vertex at = {};
        at.a = job.a.data + region.row_begin * job.a_row;
        at.b = job.b.data + region.column_begin * job.b_column;
        at.out = job.out.data + region.row_begin * job.out.row + region.column_begin * job.out.column;
        at.initial = job.initial.data;
        if (at.initial) at.initial += region.row_begin * job.initial_row + region.column_begin * job.initial_column;
        for (int axis = 0; axis < job.axes; ++axis) {
            at.a += index[axis] * job.a.stride[axis];
            at.b += index[axis] * job.b.stride[axis];
            at.out += index[axis] * job.out.stride[axis];
            if (at.initial) at.initial += index[axis] * job.initial.stride[axis];
        }
        if (random) {
            at.batch = u32(job.batch.at(index, job.axes)) & 0xffffffu;
            at.row = u32(job.row.at(index, job.axes) + region.row_begin);
            at.column = u32(job.column.at(index, job.axes) + region.column_begin);
            at.group = u32(job.first_group.at(index, job.axes));
        }
        visit(at);
        for (int axis = job.axes - 1; axis >= 0 && ++index[axis] == job.shape[axis]; --axis) index[axis] = 0;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
