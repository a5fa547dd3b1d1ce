// Python face of what counts magnitudes.
#include <nanobind/stl/tuple.h>

#include "codes/magnitudes_job.h"
#include "isa/dispatch.h"
#include "python/arrays.h"
#include "python/module.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr int exponents = 256;

// Adds to a histogram the exponents of elements `step` apart, going round at the end.
void add_exponents(const u32 *bits, i64 size, i64 count, i64 step, i64 *histogram) {
    for (i64 k = 0, at = 0; k < count; ++k) {
        ++histogram[bits[at] >> 23 & 0xff];
        at += step;
        if (at >= size) at -= size;
    }
}

std::tuple<i64, i64, i64, double, float> magnitudes_of(nb::handle x, i64 count, i64 step, nb::handle histogram) {
    nb::object input = contiguous(x);
    PyArrayObject *array = as_array(input), *into = as_array(histogram);
    const i64 size = size_of(input);
    if (PyArray_TYPE(array) != NPY_FLOAT32) throw std::invalid_argument("magnitudes are counted of float32");
    if (PyArray_TYPE(into) != NPY_INT64 || size_of(histogram) != exponents)
        throw std::invalid_argument("the histogram must be 256 of int64");
    if (count < 0 || (count && (step < 0 || step > size || size == 0)))
        throw std::invalid_argument("no such elements for the histogram");
    const u32 *bits = static_cast<const u32 *>(data_of(input));
    i64 *places = static_cast<i64 *>(output_of(histogram));
    auto loop = table().counting->magnitudes;
    nb::gil_scoped_release release;
    const Magnitudes all = loop(bits, size);
    add_exponents(bits, size, count, step, places);
    return {all.zeros, all.infinite, all.nan, all.squares, bit_cast<float>(all.largest)};
}

}  // namespace

void bind_magnitudes(nb::module_ &m) {
    m.def(
        "magnitudes", &magnitudes_of, nb::arg("x"), nb::arg("count"), nb::arg("step"), nb::arg("histogram"),
        "(zeros, infinite, NaN, sum of squares, largest magnitude) of float32; adds to 256 exponents those of so many "
        "elements, a step apart.");
}

}  // namespace lowprec
