// NumPy arrays as operands: element kinds, shapes broadcast together, strides.
#ifndef LOWPREC_ARRAY_OPERANDS_H
#define LOWPREC_ARRAY_OPERANDS_H

#include <string>
#include <vector>

#include "lowprec/bits.h"
#include "operands/operand.h"
#include "python/arrays.h"

namespace lowprec {

// What a prepared call expects of one operand. `type_number` is NumPy's number of the dtype.
struct OperandType {
    int type_number;
    Element element;
    CodeTable table;

    OperandType(nanobind::handle dtype, int kind, nanobind::handle values)
        : type_number(reinterpret_cast<PyArray_Descr *>(dtype.ptr())->type_num), element(Element(kind)) {
        if (element == Element::table8) table.fill(data_of(values));
    }
};

inline std::string text_of(nanobind::handle object) { return nanobind::str(object).c_str(); }

inline std::string text_of(PyArray_Descr *descr) { return text_of(nanobind::handle((PyObject *)descr)); }

inline std::string dtype_name(PyArrayObject *array) { return text_of(PyArray_DESCR(array)); }

inline std::string shape_name(int axes, const npy_intp *shape) {
    nanobind::list lengths;
    for (int i = 0; i < axes; ++i) lengths.append(shape[i]);
    return text_of(nanobind::tuple(lengths));
}

// What messages call an object: an array's dtype, else its type.
inline std::string kind_name(nanobind::handle object) {
    if (PyArray_Check(object.ptr())) return dtype_name(as_array(object));
    return Py_TYPE(object.ptr())->tp_name;
}

// The array behind a handle, checked against what was prepared; `what` names it, `also` says what else there could be.
inline PyArrayObject *operand_array(nanobind::handle object, const OperandType &type, const char *what = "an operand",
                                    const char *also = "") {
    const bool is_array = PyArray_Check(object.ptr());
    PyArrayObject *array = reinterpret_cast<PyArrayObject *>(object.ptr());
    if (is_array && PyArray_DESCR(array)->type_num == type.type_number && PyArray_ISNOTSWAPPED(array)) return array;
    nanobind::object descr = nanobind::steal((PyObject *)PyArray_DescrFromType(type.type_number));
    const std::string wanted = std::string(what) + " must be an array of " + text_of(descr) + also;
    throw nanobind::type_error((wanted + ", not " + kind_name(object)).c_str());
}

// `out`, checked: an array of a dtype and shape that can be written to.
inline PyArrayObject *given_output(nanobind::handle out, PyArray_Descr *descr, int axes, const npy_intp *shape) {
    if (!PyArray_Check(out.ptr()) || PyArray_DESCR(as_array(out))->type_num != descr->type_num)
        throw nanobind::type_error(("out must be an array of " + text_of(descr) + ", not " + kind_name(out)).c_str());
    PyArrayObject *given = as_array(out);
    bool same = PyArray_NDIM(given) == axes;
    for (int i = 0; same && i < axes; ++i) same = PyArray_DIM(given, i) == shape[i];
    if (!same)
        throw std::invalid_argument("out has shape " + shape_name(PyArray_NDIM(given), PyArray_DIMS(given)) +
                                    ", the result " + shape_name(axes, shape));
    if (!PyArray_ISWRITEABLE(given)) throw std::invalid_argument("out is read-only");
    return given;
}

// The 64 bits of a key: an integer, an object with an int `value` (lowprec.Key), or None where none is needed.
inline u64 key_bits(nanobind::handle key, bool needed) {
    if (key.is_none()) {
        if (needed) throw std::invalid_argument("stochastic rounding needs key=, a lowprec.Key or an integer");
        return 0;
    }
    nanobind::object number;
    if (PyLong_Check(key.ptr()))
        number = nanobind::borrow(key);
    else if (PyIndex_Check(key.ptr()))  // a numpy integer
        number = nanobind::steal(PyNumber_Index(key.ptr()));
    else
        number = nanobind::getattr(key, "value", nanobind::none());
    const bool integer = number.is_valid() && PyLong_Check(number.ptr());
    const u64 bits = integer ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
    if (integer && !PyErr_Occurred()) return bits;
    PyErr_Clear();
    const std::string message = "a key must be a lowprec.Key or an integer in [0, 2^64), not ";
    if (integer) throw std::invalid_argument(message + text_of(number));
    throw nanobind::type_error((message + kind_name(key)).c_str());
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
