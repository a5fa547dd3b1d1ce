// Python face of what counts magnitudes, and changes.
#include <nanobind/stl/tuple.h>

#include <string>

#include "codes/magnitudes_job.h"
#include "isa/dispatch.h"
#include "python/array_operands.h"
#include "python/arrays.h"
#include "python/module.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr int exponents = 256;

// NumPy's number of ml_dtypes' bfloat16.
int bfloat_type() {
    static const int number = [] {
        nb::object dtype =
            nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
        return reinterpret_cast<PyArray_Descr *>(dtype.ptr())->type_num;
    }();
    return number;
}

Element element_of(PyArrayObject *array) {
    const int type = PyArray_TYPE(array);
    if (!PyArray_ISNOTSWAPPED(array)) throw std::invalid_argument("the numbers must be in this machine's byte order");
    if (type == NPY_FLOAT32) return Element::real32;
    if (type == NPY_HALF) return Element::half;
    if (type == bfloat_type()) return Element::bfloat;
    throw std::invalid_argument("float32, float16 and bfloat16 are counted, not " + dtype_name(array));
}

// The numbers of an array in C order; `kept` holds them.
Numbers numbers_of(nb::handle x, nb::object &kept) {
    kept = contiguous(x);
    return {static_cast<const char *>(data_of(kept)), element_of(as_array(kept))};
}

Sample sample_of(i64 size, i64 count, i64 step) {
    if (count < 0 || (count && (step < 0 || step > size || size == 0)))
        throw std::invalid_argument("no such elements to be looked at");
    return {size, count, step};
}

std::tuple<i64, i64, i64, double, float> magnitudes_of(nb::handle x, i64 count, i64 step, nb::handle histogram,
                                                       float factor) {
    nb::object kept;
    const Numbers numbers = numbers_of(x, kept);
    if (PyArray_TYPE(as_array(histogram)) != NPY_INT64 || size_of(histogram) != exponents)
        throw std::invalid_argument("the histogram must be 256 of int64");
    const Sample sample = sample_of(size_of(kept), count, step);
    const MagnitudesJob job = {numbers, factor, sample, static_cast<i64 *>(output_of(histogram))};
    auto loop = table().counting->magnitudes;
    nb::gil_scoped_release release;
    const Magnitudes all = loop(job);
    return {all.zeros, all.infinite, all.nan, all.squares, bit_cast<float>(all.largest)};
}

std::tuple<i64, i64> changes_of(nb::handle base, nb::handle direction, double scale, nb::handle before,
                                nb::handle after, i64 count, i64 step) {
    nb::object kept[4];
    ChangesJob job = {{nullptr, Element::real32},
                      numbers_of(direction, kept[1]),
                      numbers_of(before, kept[2]),
                      numbers_of(after, kept[3]),
                      scale,
                      sample_of(size_of(direction), count, step)};
    if (!base.is_none()) job.base = numbers_of(base, kept[0]);
    for (const nb::object &each : kept)
        if (each.is_valid() && size_of(each) != job.sample.size)
            throw std::invalid_argument("the arrays must have the same size");
    auto loop = table().counting->changes;
    nb::gil_scoped_release release;
    const Changes all = loop(job);
    return {all.wanted, all.lost};
}

}  // namespace

void bind_magnitudes(nb::module_ &m) {
    m.def("magnitudes", &magnitudes_of, nb::arg("x"), nb::arg("count"), nb::arg("step"), nb::arg("histogram"),
          nb::arg("factor") = 1.0f,
          "(zeros, infinite, NaN, sum of squares, largest magnitude) of numbers times a factor; adds to 256 exponents "
          "those of so many elements, a step apart.");
    m.def("changes", &changes_of, nb::arg("base").none(), nb::arg("direction"), nb::arg("scale"), nb::arg("before"),
          nb::arg("after"), nb::arg("count"), nb::arg("step"),
          "(wanted, lost): of so many elements, a step apart, those where base + scale * direction is not before, and "
          "of them those where after is; without base, where scale * direction is not 0.");
}

}  // namespace lowprec
