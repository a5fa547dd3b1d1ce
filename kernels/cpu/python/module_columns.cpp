// Python face of sums of columns: an object prepared once, then one call per set of arrays.
#include "python/module.h"
#include "python/sum_calls.h"
#include "sums/column_job.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr int lane_sums = 32;  // an axis of so many sums fills the lanes,
constexpr int drawn_sums = 8;  // or of so many, where the bits of others that lie between them would be drawn in vain

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

// The sums of `blocks` runs of `length` terms from term `start` on, into (outer, blocks, inner) of the results.
void sum_runs(const ColumnCall &call, PyArrayObject *x, PyArrayObject *y, const i64 (&run)[3], i64 results,
              ColumnJob job, int threads) {
    const auto [start, blocks, length] = run;
    const i64 outer = PyArray_DIM(x, 0), size = PyArray_DIM(x, 1), inner = PyArray_DIM(x, 2);
    const auto strides = [](PyArrayObject *array, int axis) { return array ? long(PyArray_STRIDE(array, axis)) : 0; };
    const bool pairs = call.kind == pair_sum;
    const auto along = [&](i64 count, int axis, i64 times, i64 to, i64 index) {
        return SumAxis{count, times * strides(x, axis), times * strides(y, axis), to, index};
    };
    const SumAxis kept[] = {along(outer, 0, 1, results * inner, (pairs ? results : size) * inner),
                            along(blocks, 1, length, inner, (pairs ? 1 : length) * inner), along(inner, 2, 1, 1, 1)};
    job.terms = along(length, 1, 1, inner, pairs ? 0 : inner);
    const i64 full = call.rounding.mode == stochastic ? drawn_sums : lane_sums;
    int lane = 2;
    for (int axis : {1, 0})
        if (std::min(kept[axis].size, full) > std::min(kept[lane].size, full)) lane = axis;
    job.lane = kept[lane];
    job.outer[0] = kept[lane == 0 ? 1 : 0];
    job.outer[1] = kept[lane == 2 ? 1 : 2];
    job.x.data += start * strides(x, 1);
    if (y) job.y.data += start * strides(y, 1);
    job.index += u64(pairs ? 0 : start * inner);
    const i64 units = column_units(job), work = outer * blocks * length * inner;
    auto loop = table().sums->columns;
    unlocked(work, [&] {
        in_pieces(units, 1, thread_count(16 * work, threads), [&](i64 begin, i64 end) { loop(job, begin, end); });
    });
}

// Sums over the middle axis of x or x * y (outer, size, inner), over runs of `block` terms where the kind has blocks,
// into out (outer, results, inner).
void sum_columns(const ColumnCall &call, nb::handle left, nb::handle right, i64 block, u64 key, u64 index,
                 nb::handle out, int threads) {
    PyArrayObject *x = as_array(left), *y = right.is_none() ? nullptr : as_array(right);
    if (PyArray_NDIM(x) != 3 || (y && !PyArray_SAMESHAPE(x, y))) throw std::invalid_argument("terms have three axes");
    const i64 outer = PyArray_DIM(x, 0), size = PyArray_DIM(x, 1), inner = PyArray_DIM(x, 2);
    if (call.kind == running_sum || call.kind == kahan_sum) block = size;
    block = std::min(block, size);
    const i64 blocks = block > 0 ? size / block : 0, rest = size - blocks * block;
    const i64 results = call.kind == running_sum ? size : blocks + (rest > 0);
    ColumnJob job = {};
    job.rounding = call.rounding;
    job.kind = call.kind;
    job.ieee = call.ieee;
    job.wide = call.wide;
    job.key = key;
    job.index = index;
    job.x = operand_of(call, 0, x);
    if (y) job.y = operand_of(call, 1, y);
    char *to = static_cast<char *>(output_of(out));
    const int item = call.wide ? 8 : 4;
    if (PyArray_ITEMSIZE(as_array(out)) != item || size_of(out) != outer * results * inner)
        throw std::invalid_argument("out has the wrong dtype or size");
    if (!(outer && inner)) return;
    const i64 runs[2][3] = {{0, blocks, block}, {blocks * block, 1, rest}};
    for (const i64(&run)[3] : runs) {
        if (!(run[1] && run[2])) continue;
        job.to = to + (run[0] ? blocks * inner * item : 0);
        sum_runs(call, x, y, run, results, job, threads);
    }
}

}  // namespace

void bind_columns(Module &m) {
    Class<ColumnCall>(m, "ColumnCall", "A prepared sum of columns, every step rounded once.")
        .def("__init__",
             [](ColumnCall *self, nb::sequence operands, const Rounding &rounding, int kind, bool ieee, bool wide) {
                 if (kind < 0 || kind > pair_sum) throw std::invalid_argument("unknown kind of sum");
                 std::vector<OperandType> types;
                 for (nb::handle type : operands) types.push_back(nb::cast<const OperandType &>(type));
                 new (self) ColumnCall{types, rounding, kind, ieee, wide};
             })
        .def("__call__", &sum_columns, nb::arg("x"), nb::arg("y").none(), nb::arg("block"), nb::arg("key"),
             nb::arg("index"), nb::arg("out"), nb::arg("threads"));
}

}  // namespace lowprec
