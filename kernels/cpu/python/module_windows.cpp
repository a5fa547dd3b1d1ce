// Python face of convolutions of many small groups: an object prepared once, then one call per set of arrays.
#include <nanobind/stl/array.h>

#include <array>

#include "python/module.h"
#include "python/sum_calls.h"
#include "windows/window_job.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

typedef std::array<i64, 2> Pair;

struct WindowCall {
    OperandType x, weight;
    Accumulator accumulator;
    bool exact_products;
};

Operand window_operand(nb::handle object, const OperandType &type) {
    PyArrayObject *array = operand_array(object, type);
    if (PyArray_NDIM(array) != 5) throw std::invalid_argument("images and weights of groups have five axes");
    Operand o = {static_cast<const char *>(PyArray_DATA(array)), &type.table, type.element, {}};
    for (int axis = 0; axis < 5; ++axis) o.stride[axis] = PyArray_STRIDE(array, axis);
    return o;
}

// The distance of lanes: of an axis of groups and one of what each has, as one axis.
long lane_stride(long outer, long inner, i64 groups, i64 each, const char *name) {
    if (each == 1) return outer;
    if (groups > 1 && outer != each * inner)
        throw std::invalid_argument(std::string("the last axes of ") + name + " do not lie as one");
    return inner;
}

long lane_stride(PyArrayObject *array, const char *name) {
    return lane_stride(PyArray_STRIDE(array, 3), PyArray_STRIDE(array, 4), PyArray_DIM(array, 3), PyArray_DIM(array, 4),
                       name);
}

// `place` is row, column, batch, outer, inner and first group, as Python's BlockPlace.
struct WindowArguments {
    Pair stride, dilation, front;
    std::array<i64, 6> place;
};

// What both calls have in common: x and where windows lie, sums, random bits, and where results go.
WindowJob window_job(const WindowCall &call, nb::handle x, nb::handle key, const WindowArguments &given, i64 group,
                     nb::handle out, bool &nan_met) {
    WindowJob job = {};
    job.x = window_operand(x, call.x);
    PyArrayObject *images = as_array(x), *to = as_array(out);
    job.images = PyArray_DIM(images, 0);
    job.groups = PyArray_DIM(images, 3);
    job.channels = PyArray_DIM(images, 4);
    bool fits = job.channels > 0 && group > 0;
    for (int axis = 0; axis < 2; ++axis) {
        job.image_size[axis] = PyArray_DIM(images, 1 + axis);
        job.stride[axis] = given.stride[axis];
        job.dilation[axis] = given.dilation[axis];
        job.front[axis] = given.front[axis];
        fits = fits && given.stride[axis] > 0 && given.dilation[axis] > 0;
    }
    if (!PyArray_Check(out.ptr()) || PyArray_NDIM(to) != 5) throw std::invalid_argument("out has five axes");
    job.outputs = PyArray_DIM(to, 4);
    const Accumulator &sums = call.accumulator;
    if (!fits) throw std::invalid_argument("no convolution of such groups");
    job.out.store = sums.store;
    job.out.nan_met = sums.has_nan() ? nullptr : &nan_met;
    job.out.storage = sums.storage;
    job.out.item_bytes = int(PyArray_ITEMSIZE(to));
    job.out.data = static_cast<char *>(PyArray_DATA(to));
    job.step = sums.step;
    job.final = sums.final;
    if (sums.same) job.final.active = 0;
    if (job.final.active && job.final.rounding.mode == stochastic)
        throw std::invalid_argument("results of such groups are not rounded twice with random bits");
    job.group = group;
    job.key = key_bits(key, sums.random());
    job.row = u32(given.place[0]);
    job.column = u32(given.place[1]);
    job.batch = u32(given.place[2]);
    job.outer = given.place[3];
    job.inner = given.place[4];
    job.first_group = u32(given.place[5]);
    job.half_operands = call.exact_products;
    return job;
}

// Sums of neighbouring groups side by side: what their lanes ask for.
void join_lanes(WindowJob &job, const WindowCall &call, nb::handle x) {
    if (call.accumulator.random() && job.column % 16 + job.outputs > 16)
        throw std::invalid_argument("no convolution of such groups");
    job.x.stride[4] = lane_stride(as_array(x), "x");
}

void check_axes(PyArrayObject *array, const npy_intp (&shape)[5]) {
    for (int axis = 0; axis < 5; ++axis)
        if (PyArray_DIM(array, axis) != shape[axis]) throw std::invalid_argument("no convolution of such shapes");
}

void run_windows(const WindowJob &job, void (*loop)(const WindowJob &, i64, i64), i64 units, i64 work, int threads) {
    if (work == 0) return;
    unlocked(work, [&] {
        in_pieces(units, 1, thread_count(work, threads), [&](i64 begin, i64 end) { loop(job, begin, end); });
    });
}

i64 products_of(const WindowJob &job) {
    return lane_panels(job) * window_lanes * job.images * job.count[0] * job.count[1] * job.kernel[0] * job.kernel[1] *
           job.channels;
}

// What weights and results are in a job.
void take_weights(const WindowCall &call, nb::handle weight, nb::handle out, WindowJob &job) {
    job.weight = window_operand(weight, call.weight);
    PyArrayObject *factors = as_array(weight), *to = as_array(out);
    for (int axis = 0; axis < 2; ++axis) {
        job.kernel[axis] = PyArray_DIM(factors, axis);
        job.count[axis] = PyArray_DIM(to, 1 + axis);
        job.out.stride[axis] = PyArray_STRIDE(to, axis);
    }
    check_axes(factors, {job.kernel[0], job.kernel[1], job.groups, job.channels, job.outputs});
    const npy_intp shape[] = {job.images, job.count[0], job.count[1], job.groups, job.outputs};
    given_output(out, call.accumulator.descr(), 5, shape);
    job.out.row = PyArray_STRIDE(to, 2);
}

// x (n, h, w, groups, C) with weight (kh, kw, groups, C, N) into out (n, oh, ow, groups, N).
void sum_windows(const WindowCall &call, nb::handle x, nb::handle weight, i64 group, Pair stride, Pair dilation,
                 Pair front, nb::handle key, const std::array<i64, 6> &place, nb::handle out, int threads) {
    bool nan_met = false;
    WindowJob job = window_job(call, x, key, {stride, dilation, front, place}, group, out, nan_met);
    join_lanes(job, call, x);
    take_weights(call, weight, out, job);
    job.out.column = lane_stride(as_array(out), "out");
    const i64 lines = lane_panels(job) * job.images * job.count[0];
    run_windows(job, table().sums->windows, lines, products_of(job), threads);
    refuse_nan(nan_met);
}

// The same where lanes are of one group: its outputs, or neighbouring windows.
void sum_dense_windows(const WindowCall &call, nb::handle x, nb::handle weight, bool lanes_are_windows, i64 group,
                       Pair stride, Pair dilation, Pair front, nb::handle key, const std::array<i64, 6> &place,
                       nb::handle out, int threads) {
    bool nan_met = false;
    WindowJob job = window_job(call, x, key, {stride, dilation, front, place}, group, out, nan_met);
    take_weights(call, weight, out, job);
    job.out.stride[2] = PyArray_STRIDE(as_array(out), 3);
    job.out.column = PyArray_STRIDE(as_array(out), 4);
    job.lanes_are_windows = lanes_are_windows;
    const bool random = call.accumulator.random();
    const i64 column = job.column % 16;
    if (lanes_are_windows ? job.stride[1] != 1 || (random && (column % 2 || column + job.outputs > 16))
                          : random && column != 0)
        throw std::invalid_argument("no convolution in such lanes");
    const i64 work = job.groups * job.outputs * job.images * job.count[0] * job.count[1] * job.kernel[0] *
                     job.kernel[1] * job.channels;
    run_windows(job, table().sums->dense_windows, job.groups * job.images * job.count[0], work, threads);
    refuse_nan(nan_met);
}

// x (n, h, w, groups, C) with the gradient (n, oh, ow, groups, N) into out (kh, kw, groups, C, N).
void sum_weights(const WindowCall &call, nb::handle x, nb::handle gradient, i64 group, Pair stride, Pair dilation,
                 Pair front, nb::handle key, const std::array<i64, 6> &place, nb::handle out, int threads) {
    bool nan_met = false;
    WindowJob job = window_job(call, x, key, {stride, dilation, front, place}, group, out, nan_met);
    join_lanes(job, call, x);
    job.weight = window_operand(gradient, call.weight);
    PyArrayObject *outer = as_array(gradient), *to = as_array(out);
    for (int axis = 0; axis < 2; ++axis) {
        job.kernel[axis] = PyArray_DIM(to, axis);
        job.count[axis] = PyArray_DIM(outer, 1 + axis);
        job.out.stride[axis] = PyArray_STRIDE(to, axis);
    }
    check_axes(outer, {job.images, job.count[0], job.count[1], job.groups, job.outputs});
    const npy_intp shape[] = {job.kernel[0], job.kernel[1], job.groups, job.channels, job.outputs};
    given_output(out, call.accumulator.descr(), 5, shape);
    job.weight.stride[4] = lane_stride(outer, "the gradient");
    job.out.stride[2] = PyArray_STRIDE(to, 3);
    job.out.column = lane_stride(PyArray_STRIDE(to, 2), PyArray_STRIDE(to, 4), job.groups, job.outputs, "out");
    run_windows(job, table().sums->window_weights, lane_panels(job) * job.kernel[0], products_of(job), threads);
    refuse_nan(nan_met);
}

}  // namespace

void bind_windows(Module &m) {
    Class<WindowCall>(m, "WindowCall", "A prepared convolution of many small groups.")
        .def("__init__",
             [](WindowCall *self, const OperandType &x, const OperandType &weight, const Accumulator &accumulator,
                bool exact) { new (self) WindowCall{x, weight, accumulator, exact}; })
        .def("__call__", &sum_windows, nb::arg("x"), nb::arg("weight"), nb::arg("group"), nb::arg("stride"),
             nb::arg("dilation"), nb::arg("front"), nb::arg("key").none(), nb::arg("place"), nb::arg("out"),
             nb::arg("threads"))
        .def("dense", &sum_dense_windows, nb::arg("x"), nb::arg("weight"), nb::arg("lanes_are_windows"),
             nb::arg("group"), nb::arg("stride"), nb::arg("dilation"), nb::arg("front"), nb::arg("key").none(),
             nb::arg("place"), nb::arg("out"), nb::arg("threads"))
        .def("weight_gradient", &sum_weights, nb::arg("x"), nb::arg("gradient"), nb::arg("group"), nb::arg("stride"),
             nb::arg("dilation"), nb::arg("front"), nb::arg("key").none(), nb::arg("place"), nb::arg("out"),
             nb::arg("threads"));
}

}  // namespace lowprec
