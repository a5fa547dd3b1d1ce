// What elementwise calls share on their Python side: the axes of broadcast operands, the array of results, and what is
// prepared of a float32_op.
#ifndef LOWPREC_ELEMENTWISE_CALLS_H
#define LOWPREC_ELEMENTWISE_CALLS_H

#include <optional>

#include "elementwise/elementwise_job.h"
#include "lowprec/round.h"
#include "operands/operand_runs.h"
#include "python/array_operands.h"

namespace lowprec {

inline void drop_axis(Operands &job, int axis) {
    for (; axis + 1 < job.axes; ++axis) {
        job.shape[axis] = job.shape[axis + 1];
        for (int i = 0; i < job.operands; ++i) job.operand[i].stride[axis] = job.operand[i].stride[axis + 1];
    }
    --job.axes;
}

// Axes that lie one after the other in every operand become one.
inline void merge_axes(Operands &job) {
    for (int axis = job.axes - 1; axis >= 0; --axis)
        if (job.shape[axis] == 1) drop_axis(job, axis);
    for (int axis = job.axes - 2; axis >= 0; --axis) {
        bool joined = true;
        for (int i = 0; i < job.operands; ++i)
            joined &= job.operand[i].stride[axis] == job.shape[axis + 1] * job.operand[i].stride[axis + 1];
        if (!joined) continue;
        job.shape[axis + 1] *= job.shape[axis];
        drop_axis(job, axis);
    }
}

// A C-contiguous array to compute into: `out` where it is one, else a new one, which `holder` keeps.
inline PyArrayObject *result_array(PyArray_Descr *descr, const Broadcast &shape, nanobind::handle out,
                                   nanobind::object &holder) {
    if (!out.is_none()) {
        PyArrayObject *given = given_output(out, descr, shape.axes, shape.shape);
        if (PyArray_ISCARRAY(given)) {
            holder = nanobind::borrow(out);
            return given;
        }
    }
    PyArrayObject *fresh = new_array(descr, shape.axes, shape.shape);
    holder = nanobind::steal(reinterpret_cast<PyObject *>(fresh));
    return fresh;
}

// The bytes that an array's elements lie between.
struct Extent {
    const char *begin, *end;

    explicit Extent(PyArrayObject *array) : begin(static_cast<const char *>(PyArray_DATA(array))), end(begin) {
        if (!PyArray_SIZE(array)) return;
        for (int i = 0; i < PyArray_NDIM(array); ++i) {
            const npy_intp step = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
            (step < 0 ? begin : end) += step;
        }
        end += PyArray_ITEMSIZE(array);
    }
    bool meets(const Extent &other) const { return begin < other.end && other.begin < end; }
};

// Whether element i of both arrays lies in the same bytes.
inline bool same_place(PyArrayObject *a, PyArrayObject *b) {
    if (PyArray_DATA(a) != PyArray_DATA(b) || PyArray_NDIM(a) != PyArray_NDIM(b)) return false;
    bool same = PyArray_ITEMSIZE(a) == PyArray_ITEMSIZE(b);
    for (int i = 0; i < PyArray_NDIM(a); ++i)
        same &= PyArray_DIM(a, i) == PyArray_DIM(b, i) && PyArray_STRIDE(a, i) == PyArray_STRIDE(b, i);
    return same;
}

// Whether an object is an array, of no subclass, that loops can read or write where it lies.
inline bool plain(nanobind::handle object) {
    return PyArray_CheckExact(object.ptr()) && PyArray_ISALIGNED(as_array(object)) &&
           PyArray_ISNOTSWAPPED(as_array(object));
}

// What a call returns: `out`, into which a result that lies elsewhere is copied, or the new array.
inline nanobind::object handed_back(PyArrayObject *target, nanobind::handle out, const nanobind::object &holder) {
    if (out.is_none() || reinterpret_cast<PyObject *>(target) == out.ptr()) return holder;
    if (PyArray_CopyInto(as_array(out), target) < 0) throw nanobind::python_error();
    return nanobind::borrow(out);
}

// A prepared float32_op. `keyed`: it asks for a key, if only because its rounding would in general draw random bits.
// `held`: the conversion of results that are one of the operands, where the format holds all of these: arrays' values
// it does then, numbers are looked at.
struct ElementwiseCall {
    int operation, plain, keyed, item_bytes;
    std::vector<OperandType> types;
    ConvertJob conversion;
    std::optional<ConvertJob> held;
    nanobind::object dtype;

    ElementwiseCall(int op, const std::vector<const OperandType *> &operands, const ConvertJob &convert,
                    const std::optional<ConvertJob> &convert_held, nanobind::object out_dtype, bool is_plain,
                    bool is_keyed)
        : operation(op), plain(is_plain), keyed(is_keyed), conversion(convert), held(convert_held), dtype(out_dtype) {
        for (const OperandType *type : operands) types.push_back(*type);
        item_bytes = int(PyDataType_ELSIZE(descr()));
    }
    PyArray_Descr *descr() const { return reinterpret_cast<PyArray_Descr *>(dtype.ptr()); }
};

// Whether a rounding leaves a number as it is.
inline bool holds(const Rounding &rounding, float number) {
    const u32 bits = bit_cast<u32>(number);
    return round_bits<toward_zero, true>(bits, 0u, make_rounder<u32>(rounding, true)) == bits;
}

// Sets all of a job but its key, its offset and where its result goes, and gives the result's shape. Operands are
// arrays, or numbers, which are put into `scalars`; both must outlive the job.
inline Broadcast set_operands(ElementwiseJob &job, const ElementwiseCall &call, nanobind::tuple operands,
                              float *scalars) {
    job.operation = call.operation;
    job.operands = int(call.types.size());
    job.plain = call.plain;
    job.item_bytes = call.item_bytes;
    bool all_held = call.held.has_value();
    if (int(operands.size()) != job.operands) throw std::invalid_argument("wrong number of operands");
    PyArrayObject *arrays[3] = {};
    Broadcast shape;
    for (int i = 0; i < job.operands; ++i) {
        nanobind::handle object = operands[i];
        Operand &operand = job.operand[i];
        if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) {
            scalars[i] = float(PyFloat_AsDouble(object.ptr()));
            if (PyErr_Occurred()) throw nanobind::python_error();  // an integer beyond every double
            operand = {reinterpret_cast<const char *>(&scalars[i]), nullptr, Element::real32, {}};
            all_held = all_held && holds(call.held->rounding, scalars[i]);
            continue;
        }
        arrays[i] = operand_array(object, call.types[i]);
        operand = {static_cast<const char *>(PyArray_DATA(arrays[i])), &call.types[i].table, call.types[i].element, {}};
        shape.take(arrays[i]);
    }
    job.out = all_held ? *call.held : call.conversion;
    job.axes = shape.axes;
    for (int i = 0; i < shape.axes; ++i) job.shape[i] = shape.shape[i];
    for (int i = 0; i < job.operands; ++i)
        if (arrays[i]) shape.strides(arrays[i], job.operand[i].stride);
    merge_axes(job);
    return shape;
}

}  // namespace lowprec
#endif
