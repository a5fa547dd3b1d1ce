// What is prepared of sums over an axis and of maxima, and the jobs made of it and of an array.
#ifndef LOWPREC_REDUCE_CALLS_H
#define LOWPREC_REDUCE_CALLS_H

#include "python/sum_calls.h"
#include "sums/sum_jobs.h"

namespace lowprec {

struct ReduceCall {
    OperandType x;
    Accumulator accumulator;
    Order order;
};

struct MaximumCall {
    OperandType x;
    Accumulator accumulator;
};

// x (v.., m, k, n) of a job, as far as the array says; `vertices` takes its first axes.
inline void set_terms(ReduceJob &job, const ReduceCall &call, nanobind::handle x, Broadcast &vertices) {
    PyArrayObject *array = operand_array(x, call.x);
    const int last = PyArray_NDIM(array) - 1;
    if (last < 2) throw std::invalid_argument("reduce needs axes (.., m, k, n)");
    vertices.take(array, 3);
    job.axes = vertices.axes;
    for (int i = 0; i < vertices.axes; ++i) job.shape[i] = vertices.shape[i];
    job.x = operand(array, call.x, vertices, 3);
    job.m = PyArray_DIM(array, last - 2);
    job.k = PyArray_DIM(array, last - 1);
    job.n = PyArray_DIM(array, last);
    job.x_row = PyArray_STRIDE(array, last - 2);
    job.x_k = PyArray_STRIDE(array, last - 1);
    job.x_column = PyArray_STRIDE(array, last);
    job.order = job.starts = nullptr;
}

// The order and the roundings of a job whose terms are set.
inline void set_order(ReduceJob &job, const ReduceCall &call) {
    job.step = call.accumulator.step;
    job.final = call.accumulator.final;
    const Cut cut = call.order.cut(job.k);
    job.group = cut.group;
    job.part = cut.part;
    job.run = cut.run;
    job.stages = cut.stages;
    if (call.accumulator.same && job.k <= job.part && job.stages == 1) job.final.active = 0;
    job.random = call.accumulator.random();
}

// x (m, k, n) of a job.
inline void set_terms(MaximumJob &job, const MaximumCall &call, nanobind::handle x) {
    PyArrayObject *array = operand_array(x, call.x);
    if (PyArray_NDIM(array) != 3) throw std::invalid_argument("maximum needs axes (m, k, n)");
    job.x = operand(array, call.x, Broadcast{}, 3);
    job.m = PyArray_DIM(array, 0);
    job.k = PyArray_DIM(array, 1);
    job.n = PyArray_DIM(array, 2);
    job.x_row = PyArray_STRIDE(array, 0);
    job.x_k = PyArray_STRIDE(array, 1);
    job.x_column = PyArray_STRIDE(array, 2);
}

}  // namespace lowprec
#endif
