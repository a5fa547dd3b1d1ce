// Python face of exact arithmetic.
#include "arithmetic.h"
#include "calls.h"
#include "module.h"
#include "operand_calls.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 14;  // elements that are worth a thread
constexpr i64 quick = 1 << 10;  // below this, giving up the interpreter's lock costs more than it gains
constexpr int lane_sums = 32;   // an axis of so many sums fills the lanes,
constexpr int drawn_sums = 8;   // or of so many, where the bits of others that lie between them would be drawn in vain

// A prepared operation: its number, the mode in which an exact result becomes a double, whether that mode's sums of
// zero are -0, the operands' types (none: doubles) and the conversion from doubles.
struct ExactCall {
    int operation, mode, down;
    std::vector<OperandType> types;
    std::vector<bool> wide;
    ConvertJob conversion;
    nb::object dtype;
    int item_bytes;

    PyArray_Descr *descr() const { return reinterpret_cast<PyArray_Descr *>(dtype.ptr()); }
};

void make_exact(ExactCall *self, int operation, int mode, bool down, nb::sequence operands,
                const ConvertJob &conversion, nb::object dtype) {
    if (operation < 0 || operation > exact_fma) throw std::invalid_argument("unknown operation number");
    if (mode < 0 || mode >= mode_count) throw std::invalid_argument("unknown rounding mode number");
    nb::object real64 = nb::steal(reinterpret_cast<PyObject *>(PyArray_DescrFromType(NPY_DOUBLE)));
    new (self) ExactCall{operation, mode, down, {}, {}, conversion, dtype, 0};
    for (nb::handle type : operands) {
        self->wide.push_back(type.is_none());
        self->types.push_back(type.is_none() ? OperandType(real64, int(Element::real32), {})
                                             : nb::cast<const OperandType &>(type));
    }
    self->item_bytes = int(PyDataType_ELSIZE(self->descr()));
}

// An operand of the job: a Python float, or an array, which `holder` keeps.
void take_operand(const ExactCall &call, nb::handle object, int number, ExactJob &job, double &scalar,
                  nb::object &holder, Broadcast &shape) {
    Operand &operand = job.operand[number];
    job.wide[number] = call.wide[number];
    if (PyFloat_CheckExact(object.ptr())) {
        scalar = PyFloat_AS_DOUBLE(object.ptr());
        operand = {reinterpret_cast<const char *>(&scalar), nullptr, Element::real32, {}};
        job.wide[number] = 1;
        return;
    }
    PyArrayObject *array = operand_array(object, call.types[number]);
    if (!PyArray_ISALIGNED(array)) {
        holder = nb::steal(PyArray_NewCopy(array, NPY_CORDER));
        if (!holder.is_valid()) throw nb::python_error();
        array = as_array(holder);
    } else {
        holder = nb::borrow(object);
    }
    operand = {
        static_cast<const char *>(PyArray_DATA(array)), &call.types[number].table, call.types[number].element, {}};
    shape.take(array);
}

// The result, ExactOutcome's bits, and 1 for every element (C order) that is left to the reference, or None.
nb::tuple run_exact(const ExactCall &call, nb::tuple operands, u64 key, u64 offset, nb::handle out, int threads) {
    ExactJob job = {};
    job.operation = call.operation;
    job.mode = call.mode;
    job.down = call.down;
    job.operands = int(call.types.size());
    job.item_bytes = call.item_bytes;
    if (int(operands.size()) != job.operands) throw std::invalid_argument("wrong number of operands");
    double scalars[3];
    nb::object arrays[3], holder;
    Broadcast shape;
    for (int i = 0; i < job.operands; ++i) take_operand(call, operands[i], i, job, scalars[i], arrays[i], shape);
    job.axes = shape.axes;
    for (int i = 0; i < shape.axes; ++i) job.shape[i] = shape.shape[i];
    for (int i = 0; i < job.operands; ++i)
        if (arrays[i].is_valid()) shape.strides(as_array(arrays[i]), job.operand[i].stride);
    PyArrayObject *target = result_array(call.descr(), shape, out, holder);
    merge_axes(job);
    job.out = call.conversion;
    job.out.key = key;
    job.out.offset = offset;
    job.out.to = PyArray_DATA(target);
    npy_intp n = shape.size();
    u8 few[quick] = {};
    nb::object marks;
    if (n > quick) marks = nb::steal(PyArray_ZEROS(1, &n, NPY_UINT8, 0));
    job.left = n > quick ? static_cast<u8 *>(data_of(marks)) : few;
    auto loop = table().arithmetic->exact;
    int outcome = 0;
    if (n <= quick) {
        outcome = loop(job, 0, n);
    } else {
        nb::gil_scoped_release release;
        parallel_for(n, grain, threads,
                     [&](i64 begin, i64 end) { __atomic_fetch_or(&outcome, loop(job, begin, end), __ATOMIC_RELAXED); });
    }
    nb::object result = handed_back(target, out, holder);
    if (!(outcome & some_left)) return nb::make_tuple(result, outcome, nb::none());
    if (n <= quick) {
        marks = nb::steal(PyArray_SimpleNew(1, &n, NPY_UINT8));
        std::copy(few, few + n, static_cast<u8 *>(data_of(marks)));
    }
    return nb::make_tuple(result, outcome, marks);
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
    auto loop = table().arithmetic->columns;
    unlocked(work,
             [&] { in_pieces(units, 1, 16 * work, threads, [&](i64 begin, i64 end) { loop(job, begin, end); }); });
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

void bind_arithmetic(nb::module_ &m) {
    nb::class_<ExactCall>(m, "ExactCall", "A prepared operation, exact and rounded once.")
        .def("__init__", &make_exact, nb::arg("operation"), nb::arg("mode"), nb::arg("down"), nb::arg("operands"),
             nb::arg("conversion"), nb::arg("dtype"))
        .def("__call__", &run_exact, nb::arg("operands"), nb::arg("key"), nb::arg("offset"), nb::arg("out").none(),
             nb::arg("threads"));
    nb::class_<ColumnCall>(m, "ColumnCall", "A prepared sum of columns, every step rounded once.")
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
