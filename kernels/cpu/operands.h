// NumPy arrays as operands: element kinds, shapes broadcast together, strides.
#ifndef LOWPREC_OPERANDS_H
#define LOWPREC_OPERANDS_H

#include <string>
#include <vector>

#include "arrays.h"
#include "lowprec/bits.h"
#include "operand.h"

namespace lowprec {

// What a prepared call expects of one operand. `type_number` is NumPy's number of the dtype.
struct OperandType {
    int type_number;
    Element element;
    CodeTable table;

    OperandType(nanobind::handle dtype, int kind, nanobind::handle values)
        : type_number(reinterpret_cast<PyArray_Descr *>(dtype.ptr())->type_num), element(Element(kind)) {
        if (element == Element::table8) table.fill(static_cast<const float *>(data_of(values)));
    }
};

// The array behind a handle, checked against what was prepared.
inline PyArrayObject *operand_array(nanobind::handle object, const OperandType &type) {
    PyArrayObject *array = as_array(object);
    if (PyArray_DESCR(array)->type_num != type.type_number || !PyArray_ISNOTSWAPPED(array))
        throw nanobind::type_error("an operand's dtype is not the one this call was prepared for");
    return array;
}

// The 64 bits of a key: an int, an object with an int `value` (lowprec.Key), or None where none is needed.
inline u64 key_bits(nanobind::handle key, bool needed) {
    if (key.is_none()) {
        if (needed) throw std::invalid_argument("stochastic rounding needs key=, a lowprec.Key or an integer");
        return 0;
    }
    nanobind::object number = PyLong_Check(key.ptr()) ? nanobind::borrow(key) : nanobind::getattr(key, "value");
    const u64 bits = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred()) throw nanobind::python_error();
    return bits;
}

inline PyArrayObject *new_array(PyArray_Descr *descr, int axes, const npy_intp *shape) {
    Py_INCREF(descr);
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, axes, shape, nullptr, nullptr, 0, nullptr);
    if (!array) throw nanobind::python_error();
    return reinterpret_cast<PyArrayObject *>(array);
}

// Widens `shape` (of `axes` axes, aligned at the last) by an array's shape.
struct Broadcast {
    int axes = 0;
    npy_intp shape[max_axes] = {};

    // The array's axes but the last `own`.
    void take(PyArrayObject *array, int own = 0) {
        const int given = PyArray_NDIM(array) - own;
        if (given > max_axes) throw std::invalid_argument("at most 8 axes are supported");
        for (; axes < given; ++axes) {
            for (int i = axes; i > 0; --i) shape[i] = shape[i - 1];
            shape[0] = 1;
        }
        for (int i = 0; i < given; ++i) {
            npy_intp &here = shape[axes - given + i];
            const npy_intp length = PyArray_DIM(array, i);
            if (here == 1)
                here = length;
            else if (length != 1 && length != here)
                throw std::invalid_argument("operands could not be broadcast together: lengths " +
                                            std::to_string(here) + " and " + std::to_string(length) + " on one axis");
        }
    }
    npy_intp size() const {
        npy_intp n = 1;
        for (int i = 0; i < axes; ++i) n *= shape[i];
        return n;
    }
    // Byte strides of an array over these axes, 0 where it is broadcast.
    void strides(PyArrayObject *array, long *to, int own = 0) const {
        const int given = PyArray_NDIM(array) - own;
        for (int i = 0; i < axes; ++i) to[i] = 0;
        for (int i = 0; i < given; ++i)
            if (PyArray_DIM(array, i) != 1) to[axes - given + i] = PyArray_STRIDE(array, i);
    }
};

}  // namespace lowprec
#endif
