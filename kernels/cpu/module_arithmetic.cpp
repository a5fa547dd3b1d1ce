// Python face of exact arithmetic.
#include "arithmetic.h"
#include "calls.h"
#include "module.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 14;

const double *operand(nb::handle array, i64 size) {
    if (size_of(array) != size || !PyArray_IS_C_CONTIGUOUS(as_array(array)))
        throw std::invalid_argument("operands must be contiguous and of the result's size");
    return static_cast<const double *>(data_of(array));
}

bool exact_array(int operation, int mode, bool down, nb::sequence operands, nb::handle out, nb::handle left,
                 int threads) {
    if (operation < 0 || operation > exact_fma) throw std::invalid_argument("unknown operation number");
    if (mode < 0 || mode >= mode_count) throw std::invalid_argument("unknown rounding mode number");
    const i64 n = size_of(out);
    ExactJob job = {
        operation, mode, down, {}, static_cast<double *>(output_of(out)), static_cast<u8 *>(output_of(left))};
    if (size_of(left) != n) throw std::invalid_argument("result and marks differ in size");
    const size_t given = nb::len(operands);
    for (size_t i = 0; i < 3; ++i) {
        nb::object x = operands[i < given ? i : 0];
        job.operands[i] = operand(x, n);
    }
    auto loop = table().arithmetic->exact;
    nb::gil_scoped_release release;
    int any = 0;
    parallel_for(n, grain, threads, [&](i64 begin, i64 end) {
        if (loop(job, begin, end)) __atomic_store_n(&any, 1, __ATOMIC_RELAXED);
    });
    return any != 0;
}

// Where x and y (equal shapes of four axes: two outer ones, terms, lanes) lie, and what one step along an axis is.
SumAxis axis_of(PyArrayObject *x, PyArrayObject *y, nb::tuple to, nb::tuple index, int axis) {
    return {PyArray_DIM(x, axis), PyArray_STRIDE(x, axis), y ? PyArray_STRIDE(y, axis) : 0, nb::cast<i64>(to[axis]),
            nb::cast<i64>(index[axis])};
}

// A prepared kind of sum over arrays of two dtypes.
struct ColumnCall {
    std::vector<OperandType> operands;  // of x and y; none for doubles
    Rounding rounding;
    int kind;
    bool ieee, wide;
};

Operand operand_of(const ColumnCall &call, size_t number, PyArrayObject *array) {
    if (call.wide) {
        if (PyArray_TYPE(array) != NPY_DOUBLE) throw nb::type_error("terms must be float64");
        return {static_cast<const char *>(PyArray_DATA(array)), nullptr, Element::real32, {}};
    }
    const OperandType &type = call.operands[number];
    operand_array(reinterpret_cast<PyObject *>(array), type);
    return {static_cast<const char *>(PyArray_DATA(array)), &type.table, type.element, {}};
}

// x, y (outer, outer, terms, lanes); steps of the result and of the random bits along these axes; `out` flat.
void sum_columns(const ColumnCall &call, nb::handle left, nb::handle right, nb::tuple to, nb::tuple index,
                 nb::handle random, nb::handle out, int threads) {
    PyArrayObject *x = as_array(left), *y = right.is_none() ? nullptr : as_array(right);
    if (PyArray_NDIM(x) != 4 || (y && PyArray_NDIM(y) != 4)) throw std::invalid_argument("terms have four axes");
    ColumnJob job = {};
    job.rounding = call.rounding;
    job.kind = call.kind;
    job.ieee = call.ieee;
    job.wide = call.wide;
    job.x = operand_of(call, 0, x);
    if (y) job.y = operand_of(call, 1, y);
    SumAxis *axes[] = {&job.outer[0], &job.outer[1], &job.terms, &job.lane};
    i64 last_index = 0, last_result = 0, elements = 1;
    for (int axis = 0; axis < 4; ++axis) {
        *axes[axis] = axis_of(x, y, to, index, axis);
        if (y && PyArray_DIM(y, axis) != axes[axis]->size) throw std::invalid_argument("terms differ in shape");
        last_index += (axes[axis]->size - 1) * axes[axis]->index;
        if (axis != 2 || call.kind == running_sum) last_result += (axes[axis]->size - 1) * axes[axis]->to;
        elements *= axes[axis]->size;
    }
    if (elements == 0) return;
    job.to = output_of(out);
    if (PyArray_ITEMSIZE(as_array(out)) != (call.wide ? 8 : 4) || size_of(out) <= last_result)
        throw std::invalid_argument("out has the wrong dtype or size");
    if (!random.is_none()) {
        const i64 steps = call.kind == kahan_sum ? 4 : 1;
        if (size_of(random) < steps * (last_index + 1) || !PyArray_IS_C_CONTIGUOUS(as_array(random)))
            throw std::invalid_argument("random bits have the wrong size");
        job.random = data_of(random);
        job.wide_random = PyArray_ITEMSIZE(as_array(random)) == 4;
    } else if (call.rounding.mode == stochastic) {
        throw std::invalid_argument("stochastic rounding needs random bits");
    }
    const i64 units = column_units(job);
    auto loop = table().arithmetic->columns;
    unlocked(elements,
             [&] { in_pieces(units, 1, 16 * elements, threads, [&](i64 begin, i64 end) { loop(job, begin, end); }); });
}

}  // namespace

void bind_arithmetic(nb::module_ &m) {
    m.def("exact", &exact_array, nb::arg("operation"), nb::arg("mode"), nb::arg("down"), nb::arg("operands"),
          nb::arg("out"), nb::arg("left"), nb::arg("threads"),
          "One operation on doubles rounded to a double by a mode; true where elements are left to the reference.");
    nb::class_<ColumnCall>(m, "ColumnCall", "A prepared sum of columns, every step rounded once.")
        .def("__init__",
             [](ColumnCall *self, nb::sequence operands, const Rounding &rounding, int kind, bool ieee, bool wide) {
                 if (kind < 0 || kind > pair_sum) throw std::invalid_argument("unknown kind of sum");
                 std::vector<OperandType> types;
                 for (nb::handle type : operands) types.push_back(nb::cast<const OperandType &>(type));
                 new (self) ColumnCall{types, rounding, kind, ieee, wide};
             })
        .def("__call__", &sum_columns, nb::arg("x"), nb::arg("y").none(), nb::arg("to"), nb::arg("index"),
             nb::arg("random").none(), nb::arg("out"), nb::arg("threads"));
}

}  // namespace lowprec
