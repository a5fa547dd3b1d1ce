// Python face of what counts magnitudes, changes and underflows.
#include <nanobind/stl/tuple.h>

#include <string>

#include "codes/magnitudes_job.h"
#include "codes/underflow_job.h"
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
                                                       double factor) {
    nb::object kept;
    const Numbers numbers = numbers_of(x, kept);
    if (PyArray_TYPE(as_array(histogram)) != NPY_INT64 || size_of(histogram) != exponents)
        throw std::invalid_argument("the histogram must be 256 of int64");
    const Sample sample = sample_of(size_of(kept), count, step);
    const MagnitudesJob job = {numbers, float(factor), sample, static_cast<i64 *>(output_of(histogram))};
    auto loop = table().counting->magnitudes;
    ReleasedGil release;
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
    ReleasedGil release;
    const Changes all = loop(job);
    return {all.wanted, all.lost};
}

// An operand as the elements of the result take it: of its axes `summed` is that of the sum (-1: there is none), and of
// those of the result it lacks `absent` (-1: none).
Term term_of(nb::handle x, const UnderflowJob &job, int summed, int absent) {
    Term term = {};
    if (!PyArray_Check(x.ptr())) {
        term.number = nb::cast<double>(x);
        return term;
    }
    PyArrayObject *array = as_array(x);
    term.x = {static_cast<const char *>(PyArray_DATA(array)), element_of(array)};
    if (summed < 0 && PyArray_SIZE(array) == 1) return term;  // one number for all
    const int axes = PyArray_NDIM(array);
    if (axes != job.axes + (summed >= 0) - (absent >= 0))
        throw std::invalid_argument("an operand has other axes than the result");
    for (int axis = 0, own = 0; axis < job.axes; ++axis) {
        if (axis == absent) continue;
        own += own == summed;
        if (PyArray_DIM(array, own) != job.shape[axis])
            throw std::invalid_argument("an operand has another shape than the result");
        term.stride[axis] = PyArray_STRIDE(array, own++);
    }
    if (summed >= 0) term.step = PyArray_STRIDE(array, summed);
    return term;
}

// Makes one axis of neighbours through which both operands go in even steps.
void merge_axes(UnderflowJob &job) {
    int last = 0;
    for (int axis = 1; axis < job.axes; ++axis) {
        bool even = true;
        for (Term *term : {&job.left, &job.right})
            even = even && term->stride[last] == term->stride[axis] * job.shape[axis];
        last += !even;
        job.shape[last] = even ? job.shape[last] * job.shape[axis] : job.shape[axis];
        for (Term *term : {&job.left, &job.right}) term->stride[last] = term->stride[axis];
    }
    job.axes = job.axes ? last + 1 : 0;
}

i64 underflows_of(const char *name, nb::handle result, nb::handle left, nb::handle right, double scale, i64 zeros,
                  i64 count) {
    const std::string op = name;
    nb::object kept;
    UnderflowJob job = {};
    job.result = numbers_of(result, kept);
    job.size = size_of(kept);
    job.axes = PyArray_NDIM(as_array(kept));
    if (job.axes > max_axes) throw std::invalid_argument("too many axes");
    for (int axis = 0; axis < job.axes; ++axis) job.shape[axis] = PyArray_DIM(as_array(kept), axis);
    if (count < 0 || count > zeros || zeros > job.size) throw std::invalid_argument("no such zeros to be looked at");
    job.scale = scale, job.zeros = zeros, job.count = count, job.terms = 1;
    const int last = job.axes - 1;
    if (op == "dot") {  // (..., m, k) and (..., k, n)
        job.left = term_of(left, job, last, last);
        job.right = term_of(right, job, last - 1, last - 1);
        job.terms = PyArray_DIM(as_array(left), last);
        if (PyArray_DIM(as_array(right), last - 1) != job.terms)
            throw std::invalid_argument("the operands have other numbers of terms");
    } else if (op == "reduce_sum") {  // (..., k)
        job.left = term_of(left, job, job.axes, -1);
        job.right.number = 1;
        job.terms = PyArray_DIM(as_array(left), job.axes);
    } else {
        job.ideal = op == "multiply" ? Ideal::product : op == "divide" ? Ideal::quotient : Ideal::sum;
        job.left = term_of(left, job, -1, -1);
        job.right = term_of(right, job, -1, -1);
    }
    merge_axes(job);
    auto loop = table().counting->underflows;
    ReleasedGil release;
    return loop(job);
}

}  // namespace

void bind_magnitudes(Module &m) {
    m.def("magnitudes", &magnitudes_of, nb::arg("x"), nb::arg("count"), nb::arg("step"), nb::arg("histogram"),
          nb::arg("factor") = 1.0f,
          "(zeros, infinite, NaN, sum of squares, largest magnitude) of numbers times a factor; adds to 256 exponents "
          "those of so many elements, a step apart.");
    m.def("underflows", &underflows_of, nb::arg("op"), nb::arg("result"), nb::arg("left"), nb::arg("right").none(),
          nb::arg("scale"), nb::arg("zeros"), nb::arg("count"),
          "How many of so many of the zeros of a result would be finite and not zero in float64.");
    m.def("changes", &changes_of, nb::arg("base").none(), nb::arg("direction"), nb::arg("scale"), nb::arg("before"),
          nb::arg("after"), nb::arg("count"), nb::arg("step"),
          "(wanted, lost): of so many elements, a step apart, those that (base - before) + scale * direction is to "
          "change, and of them those where after is before; without base it is before.");
}

}  // namespace lowprec
