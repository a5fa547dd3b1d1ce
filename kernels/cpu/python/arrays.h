// NumPy arrays as they are: the C API's macros on any dtype, ml_dtypes' included, at the cost of a pointer
// read.
#ifndef LOWPREC_ARRAYS_H
#define LOWPREC_ARRAYS_H

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL lowprec_numpy_api
#ifndef LP_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <stdexcept>

#include "python/released_gil.h"

namespace lowprec {

inline PyArrayObject *as_array(nanobind::handle object) {
    if (!PyArray_Check(object.ptr())) throw nanobind::type_error("expected a numpy array");
    return reinterpret_cast<PyArrayObject *>(object.ptr());
}

// A C-contiguous, aligned array with the same elements: the array itself where it is one already.
inline nanobind::object contiguous(nanobind::handle object) {
    PyArrayObject *array = as_array(object);
    if (PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISALIGNED(array)) return nanobind::borrow(object);
    PyObject *copy = PyArray_FromArray(array, nullptr, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
    if (!copy) throw nanobind::python_error();
    return nanobind::steal(copy);
}

inline void *data_of(nanobind::handle array) { return PyArray_DATA(reinterpret_cast<PyArrayObject *>(array.ptr())); }

inline npy_intp size_of(nanobind::handle array) { return PyArray_SIZE(reinterpret_cast<PyArrayObject *>(array.ptr())); }

// Where results go: must be C-contiguous, aligned and writable (the Python side sees to it).
inline void *output_of(nanobind::handle object) {
    PyArrayObject *array = as_array(object);
    if (!PyArray_ISCARRAY(array)) throw std::invalid_argument("the output must be C-contiguous and writable");
    return PyArray_DATA(array);
}

}  // namespace lowprec
#endif
