// Python face of sums over an axis, sums of parts and maxima: objects prepared once, then one call per set of arrays.
#include "python/module.h"
#include "python/reduce_calls.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

struct SumCall {
    OperandType x;
    Accumulator accumulator;
    int tag;
};

// What is left to fill in of a job, and its run; `work` counts the additions of a vertex.
void run_reduction(const ReduceCall &call, ReduceJob &job, nb::handle key, i64 vertices, i64 work, int threads) {
    set_order(job, call);
    job.key = key_bits(key, job.random);
    const i64 units = job.n ? vertices * reduce_units(job) : 0;
    auto loop = table().sums->reduce;
    unlocked(4 * vertices * work, [&] {
        in_pieces(units, 1, thread_count(4 * vertices * work, threads),
                  [&](i64 begin, i64 end) { loop(job, begin, end); });
    });
}

// x (v.., m, k, n) -> (v.., m, n).
nb::object reduce(const ReduceCall &call, nb::handle x, nb::handle key, nb::handle row, nb::handle column,
                  nb::handle first_group, nb::handle batch, nb::handle out, int threads) {
    ReduceJob job;
    Broadcast vertices;
    set_terms(job, call, x, vertices);
    job.row = coordinate(row, vertices);
    job.column = coordinate(column, vertices);
    job.first_group = coordinate(first_group, vertices);
    job.batch = coordinate(batch, vertices);
    bool nan_met = false;
    nb::object result = target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out, nan_met);
    run_reduction(call, job, key, vertices.size(), job.m * job.n * (job.k + 1), threads);
    refuse_nan(nan_met);
    return result;
}

// The lines that are added to each row, in ascending order: those of row r are order[starts[r]], ...
struct LinesOfRows {
    std::vector<i64> starts, order;

    LinesOfRows(PyArrayObject *indices, i64 rows) : starts(rows + 1), order(PyArray_SIZE(indices)) {
        const i64 *given = static_cast<const i64 *>(PyArray_DATA(indices)), count = order.size();
        for (i64 i = 0; i < count; ++i) {
            if (given[i] < -rows || given[i] >= rows)
                throw nb::index_error(
                    ("index " + std::to_string(given[i]) + " is out of bounds for " + std::to_string(rows) + " rows")
                        .c_str());
            ++starts[row_of(given[i], rows) + 1];
        }
        for (i64 r = 0; r < rows; ++r) starts[r + 1] += starts[r];
        std::vector<i64> next(starts.begin(), starts.end() - 1);
        for (i64 i = 0; i < count; ++i) order[next[row_of(given[i], rows)]++] = i;
    }
    static i64 row_of(i64 index, i64 rows) { return index < 0 ? index + rows : index; }
};

// x (v.., k, n): line i is added to row indices[i] of (v.., rows, n), ascending.
nb::object scatter(const ReduceCall &call, nb::handle x, nb::handle indices, i64 rows, nb::handle key, nb::handle row,
                   nb::handle column, nb::handle batch, nb::handle out, int threads) {
    PyArrayObject *array = operand_array(x, call.x), *numbers = as_array(indices);
    const int last = PyArray_NDIM(array) - 1;
    if (last < 1 || rows < 0) throw std::invalid_argument("scatter needs axes (.., k, n) and rows");
    if (PyArray_TYPE(numbers) != NPY_INT64 || !PyArray_ISCARRAY_RO(numbers) || PyArray_NDIM(numbers) != 1 ||
        PyArray_SIZE(numbers) != PyArray_DIM(array, last - 1))
        throw std::invalid_argument("indices are contiguous int64, one per line");
    const LinesOfRows lines(numbers, rows);
    ReduceJob job;
    Broadcast vertices;
    vertices.take(array, 2);
    job.axes = vertices.axes;
    for (int i = 0; i < vertices.axes; ++i) job.shape[i] = vertices.shape[i];
    job.x = operand(array, call.x, vertices, 2);
    job.m = rows;
    job.k = PyArray_DIM(array, last - 1);
    job.n = PyArray_DIM(array, last);
    job.x_row = 0;
    job.x_k = PyArray_STRIDE(array, last - 1);
    job.x_column = PyArray_STRIDE(array, last);
    job.row = coordinate(row, vertices);
    job.column = coordinate(column, vertices);
    job.first_group = {};
    job.batch = coordinate(batch, vertices);
    job.order = lines.order.data();
    job.starts = lines.starts.data();
    bool nan_met = false;
    nb::object result = target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out, nan_met);
    run_reduction(call, job, key, vertices.size(), (job.k + rows) * job.n, threads);
    refuse_nan(nan_met);
    return result;
}

// Rows that lie one after the other are one long row, where no random bits tell them apart.
void join_rows(SumJob &job) {
    if (job.row_stride != job.n * job.column_stride || job.out.row != job.n * job.out.column) return;
    job.n *= job.m;
    job.m = 1;
}

// parts (P, v.., m, n) -> (v.., m, n).
nb::object sum_parts(const SumCall &call, nb::handle parts, nb::handle key, nb::handle index, nb::handle row,
                     nb::handle column, nb::handle batch, nb::handle out, int threads) {
    PyArrayObject *array = operand_array(parts, call.x);
    const int last = PyArray_NDIM(array) - 1;
    if (last < 2) throw std::invalid_argument("sum_parts needs axes (parts, .., m, n)");
    SumJob job;
    Broadcast vertices;
    vertices.axes = last - 2;
    if (vertices.axes > max_axes) throw std::invalid_argument("at most 8 axes are supported");
    job.parts = {static_cast<const char *>(PyArray_DATA(array)), &call.x.table, call.x.element, {}};
    job.axes = vertices.axes;
    for (int i = 0; i < vertices.axes; ++i) {
        job.shape[i] = vertices.shape[i] = PyArray_DIM(array, i + 1);
        job.parts.stride[i] = PyArray_STRIDE(array, i + 1);
    }
    job.parts_count = PyArray_DIM(array, 0);
    job.m = PyArray_DIM(array, last - 1);
    job.n = PyArray_DIM(array, last);
    job.part = PyArray_STRIDE(array, 0);
    job.row_stride = PyArray_STRIDE(array, last - 1);
    job.column_stride = PyArray_STRIDE(array, last);
    job.row = coordinate(row, vertices);
    job.column = coordinate(column, vertices);
    job.index = coordinate(index, vertices);
    job.batch = coordinate(batch, vertices);
    bool nan_met = false;
    nb::object result = target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out, nan_met);
    job.step = call.accumulator.final;
    job.tag = call.tag;
    job.key = key_bits(key, call.accumulator.random());
    if (!call.accumulator.random()) join_rows(job);
    const i64 rows = vertices.size() * job.m, work = 4 * rows * job.n * (job.parts_count + 1);
    auto loop = table().sums->parts;
    unlocked(work, [&] {
        in_pieces(rows, 1, thread_count(work, threads), [&](i64 begin, i64 end) { loop(job, begin, end); });
    });
    refuse_nan(nan_met);
    return result;
}

// x (m, k, n) -> (m, n).
nb::object maximum(const MaximumCall &call, nb::handle x, nb::handle out, int threads) {
    MaximumJob job;
    set_terms(job, call, x);
    bool nan_met = false;
    nb::object result = target(call.accumulator, Broadcast{}, true, job.m, true, job.n, out, job.out, nan_met);
    const i64 work = job.m * job.n * job.k;
    auto loop = table().sums->maximum;
    if (job.n)
        unlocked(work, [&] {
            in_pieces(job.m, 1, thread_count(work, threads), [&](i64 begin, i64 end) { loop(job, begin, end); });
        });
    refuse_nan(nan_met);
    return result;
}

}  // namespace

void bind_reduction(Module &m) {
    Class<ReduceCall>(m, "ReduceCall", nb::type_slots(holds_order<ReduceCall>), "A prepared reduce_sum or reduce_part.")
        .def("__init__", [](ReduceCall *self, const OperandType &x, const Accumulator &accumulator,
                            const Order &order) { new (self) ReduceCall{x, accumulator, order}; })
        .def("__call__", &reduce, nb::arg("x"), nb::arg("key").none(), nb::arg("row"), nb::arg("column"),
             nb::arg("first_group"), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads"))
        .def("scatter", &scatter, nb::arg("x"), nb::arg("indices"), nb::arg("rows"), nb::arg("key").none(),
             nb::arg("row"), nb::arg("column"), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads"));
    Class<SumCall>(m, "SumCall", "A prepared sum_parts.")
        .def("__init__", [](SumCall *self, const OperandType &x, const Accumulator &accumulator,
                            int tag) { new (self) SumCall{x, accumulator, tag}; })
        .def("__call__", &sum_parts, nb::arg("parts"), nb::arg("key").none(), nb::arg("index"), nb::arg("row"),
             nb::arg("column"), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads"));
    Class<MaximumCall>(m, "MaximumCall", "A prepared reduce_max.")
        .def("__init__", [](MaximumCall *self, const OperandType &x,
                            const Accumulator &accumulator) { new (self) MaximumCall{x, accumulator}; })
        .def("__call__", &maximum, nb::arg("x"), nb::arg("out").none(), nb::arg("threads"));
}

}  // namespace lowprec
