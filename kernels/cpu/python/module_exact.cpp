// Python face of exact arithmetic on elements.
#include "elementwise/exact_job.h"
#include "isa/dispatch.h"
#include "python/elementwise_calls.h"
#include "python/module.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 14;  // elements that are worth a thread
constexpr i64 quick = 1 << 10;  // below this, giving up the interpreter's lock costs more than it gains

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

// Whether float32 holds every operand: arrays by their type, a scalar by its value.
bool floats_hold(const ExactJob &job, const nb::object *arrays, const double *scalars) {
    for (int i = 0; i < job.operands; ++i)
        if (job.wide[i] && (arrays[i].is_valid() || (scalars[i] == scalars[i] && float(scalars[i]) != scalars[i])))
            return false;
    return true;
}

int looped(const ExactJob &job, int (*loop)(const ExactJob &, i64, i64), i64 n, int threads) {
    if (n <= quick) return loop(job, 0, n);
    int outcome = 0;
    ReleasedGil release;
    parallel_for(n, grain, threads,
                 [&](i64 begin, i64 end) { __atomic_fetch_or(&outcome, loop(job, begin, end), __ATOMIC_RELAXED); });
    return outcome;
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
    const ElementwiseTable &loops = *table().elementwise;
    auto loop = floats_hold(job, arrays, scalars) ? loops.exact_narrow : loops.exact;
    int outcome = looped(job, loop, n, threads);
    nb::object marks = nb::none();
    if (outcome & some_left) {  // hardly ever: once more, to know which
        marks = nb::steal(PyArray_ZEROS(1, &n, NPY_UINT8, 0));
        if (!marks.is_valid()) throw nb::python_error();
        job.left = static_cast<u8 *>(data_of(marks));
        outcome = looped(job, loop, n, threads);
    }
    return nb::make_tuple(handed_back(target, out, holder), outcome, marks);
}

}  // namespace

void bind_exact(Module &m) {
    Class<ExactCall>(m, "ExactCall", "A prepared operation, exact and rounded once.")
        .def("__init__", &make_exact, nb::arg("operation"), nb::arg("mode"), nb::arg("down"), nb::arg("operands"),
             nb::arg("conversion"), nb::arg("dtype"))
        .def("__call__", &run_exact, nb::arg("operands"), nb::arg("key"), nb::arg("offset"), nb::arg("out").none(),
             nb::arg("threads"));
}

}  // namespace lowprec
