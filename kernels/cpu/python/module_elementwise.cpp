// Python face of float32_op: an object prepared once, then one call per set of arrays.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "elementwise/elementwise_job.h"
#include "isa/dispatch.h"
#include "python/elementwise_calls.h"
#include "python/module.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 14;  // elements that are worth a thread
constexpr i64 quick = 1 << 11;  // below this, giving up the interpreter's lock costs more than it gains

nb::object run(const ElementwiseCall &call, nb::tuple operands, nb::handle key, u64 offset, nb::handle out,
               int threads) {
    ElementwiseJob job;
    float scalars[3];
    const Broadcast shape = set_operands(job, call, operands, scalars);
    nb::object holder;
    PyArrayObject *target = result_array(call.descr(), shape, out, holder);
    job.out.key = key_bits(key, call.keyed);
    job.out.offset = offset;
    job.out.to = PyArray_DATA(target);
    const i64 n = shape.size();
    auto loop = table().elementwise->run;
    std::atomic<bool> refused{false};
    if (n < quick) {
        refused = loop(job, 0, n);
    } else {
        ReleasedGil release;
        parallel_for(n, grain, threads, [&](i64 begin, i64 end) {
            if (loop(job, begin, end)) refused = true;
        });
    }
    if (refused) throw std::invalid_argument("a NaN was met and the format has none");
    return handed_back(target, out, holder);
}

// The dtypes of operands that are all plain arrays, else None.
nb::object plain_dtypes(nb::tuple operands) {
    const size_t count = operands.size();
    for (size_t i = 0; i < count; ++i)
        if (!plain(operands[i])) return nb::none();
    nb::object dtypes = nb::steal(PyTuple_New(Py_ssize_t(count)));
    if (!dtypes.is_valid()) throw nb::python_error();
    for (size_t i = 0; i < count; ++i)
        PyTuple_SET_ITEM(
            dtypes.ptr(), Py_ssize_t(i),
            nb::borrow(reinterpret_cast<PyObject *>(PyArray_DESCR(as_array(operands[i])))).release().ptr());
    return dtypes;
}

// Whether a result can be computed into `out` while the operands, arrays, are read: it is plain and C-contiguous, and
// shares no memory with them, or (`in_place`) lies where they do.
bool ready_output(nb::handle out, nb::tuple operands, bool in_place) {
    if (!plain(out) || !PyArray_ISCARRAY(as_array(out))) return false;
    const Extent written(as_array(out));
    for (nb::handle x : operands)
        if (written.meets(Extent(as_array(x))) && !(in_place && same_place(as_array(out), as_array(x)))) return false;
    return true;
}

// How many of the float32 numbers with bits [begin, end) have results outside the brackets of a function, by which
// results of few bits are found: none.
i64 outside_brackets(int operation, i64 begin, i64 end) {
    ReleasedGil release;
    return table().elementwise->outside_brackets(operation, begin, end);
}

}  // namespace

void bind_elementwise(Module &m) {
    Class<OperandType>(m, "OperandType", "What a prepared call expects of one operand.")
        .def(nb::init<nb::handle, int, nb::handle>(), nb::arg("dtype"), nb::arg("kind"), nb::arg("table").none());
    Class<ElementwiseCall>(m, "ElementwiseCall", "A prepared float32_op.")
        .def(nb::init<int, const std::vector<const OperandType *> &, const ConvertJob &,
                      const std::optional<ConvertJob> &, nb::object, bool, bool>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg())
        .def("__call__", &run, nb::arg("operands"), nb::arg("key").none(), nb::arg("offset"), nb::arg("out").none(),
             nb::arg("threads"));
    m.def("plain_dtypes", &plain_dtypes, nb::arg("operands"));
    m.def("ready_output", &ready_output, nb::arg("out"), nb::arg("operands"), nb::arg("in_place"));
    m.def("outside_brackets", &outside_brackets, nb::arg("operation"), nb::arg("begin"), nb::arg("end"));
}

}  // namespace lowprec
