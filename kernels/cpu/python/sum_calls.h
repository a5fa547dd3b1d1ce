// What calls of products and of sums share on their Python side: accumulators, orders, results, threads.
#ifndef LOWPREC_SUM_CALLS_H
#define LOWPREC_SUM_CALLS_H

#include <nanobind/stl/tuple.h>

#include "isa/dispatch.h"
#include "product/product_job.h"
#include "python/array_operands.h"
#include "threads/threads.h"

namespace lowprec {

constexpr i64 thread_work = 1 << 20;  // multiply-adds that are worth a thread
constexpr i64 quick_work = 1 << 15;   // below this, giving up the interpreter's lock costs more than it gains

// How sums are rounded and stored, shared by every call here.
struct Accumulator {
    StepRounding step, final;
    Rounding store;
    Storage storage;
    nanobind::object dtype;
    bool same;  // step and final are one rounding: a single part needs no second one

    Accumulator(const Rounding *between, bool between_wide, const Rounding *last, bool last_wide,
                const Rounding &stored, int storage_number, nanobind::object out_dtype, bool one_format)
        : step{between ? *between : Rounding{}, between != nullptr, between_wide},
          final{last ? *last : Rounding{}, last != nullptr, last_wide},
          store(stored),
          storage(Storage(storage_number)),
          dtype(out_dtype),
          same(one_format) {}
    PyArray_Descr *descr() const { return reinterpret_cast<PyArray_Descr *>(dtype.ptr()); }
    bool has_nan() const { return store.format.nan_code != ~u64(0); }
    bool random() const {
        return (step.active && step.rounding.mode == stochastic) || (final.active && final.rounding.mode == stochastic);
    }
};

// How a sum of so many terms is cut: terms of a group and of a part, and how its parts are added.
struct Cut {
    i64 group, part, run;
    int stages;
};

// In which order a sum is made. `rule(terms)` says how a sum is cut, (group, part, stages, run) in Python; the answers
// for the last few lengths are remembered.
class Order {
  public:
    Order(nanobind::object cut, int inside) : adder(Adder(inside)), rule(cut) {}

    Cut cut(i64 terms) const {
        Answer &known = answers[terms % remembered];
        if (known.terms != terms) {
            const auto [group, part, stages, run] = nanobind::cast<std::tuple<i64, i64, int, i64>>(rule(terms));
            if (group < 1 || part < 1 || run < 1 || stages < 1 || stages > 3)
                throw std::invalid_argument("no such order");
            known = {terms, {group, part, run, stages}};
        }
        return known.cut;
    }

    const Adder adder;
    nanobind::object rule;

  private:
    static constexpr int remembered = 8;
    struct Answer {
        i64 terms = -1;
        Cut cut;
    };
    mutable Answer answers[remembered];
};

// What Python's garbage collector must know of an object that holds an Order: the rule may lead back to that object.
inline Order &order_in(Order &order) { return order; }
template <class Call>
Order &order_in(Call &call) {
    return call.order;
}

template <class Holder>
int visit_order(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    if (nanobind::inst_ready(self)) Py_VISIT(order_in(*nanobind::inst_ptr<Holder>(self)).rule.ptr());
    return 0;
}

template <class Holder>
int clear_order(PyObject *self) {
    order_in(*nanobind::inst_ptr<Holder>(self)).rule.reset();
    return 0;
}

template <class Holder>
inline PyType_Slot holds_order[] = {{Py_tp_traverse, reinterpret_cast<void *>(visit_order<Holder>)},
                                    {Py_tp_clear, reinterpret_cast<void *>(clear_order<Holder>)},
                                    {0, nullptr}};

// An int, or an int64 array that broadcasts over the vertex axes.
inline Coordinate coordinate(nanobind::handle object, const Broadcast &vertices) {
    Coordinate c = {};
    if (!PyArray_Check(object.ptr()) && PyIndex_Check(object.ptr())) {
        nanobind::object number = nanobind::steal(PyNumber_Index(object.ptr()));
        c.base = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
        if (c.base == -1 && PyErr_Occurred()) throw nanobind::python_error();
        return c;
    }
    if (!PyArray_Check(object.ptr()) || PyArray_TYPE(as_array(object)) != NPY_INT64)
        throw nanobind::type_error(("coordinates must be ints or int64 arrays, not " + kind_name(object)).c_str());
    PyArrayObject *array = as_array(object);
    Broadcast check = vertices;
    check.take(array);
    if (check.axes != vertices.axes || check.size() != vertices.size())
        throw std::invalid_argument("a coordinate array does not broadcast over the vertices");
    long strides[max_axes];
    vertices.strides(array, strides);
    for (int i = 0; i < vertices.axes; ++i) c.stride[i] = strides[i];
    c.data = static_cast<const char *>(PyArray_DATA(array));
    return c;
}

// The result array: axes of the vertices, then rows and columns where `own` has them.
inline nanobind::object target(const Accumulator &accumulator, const Broadcast &vertices, bool has_rows, i64 m,
                               bool has_columns, i64 n, nanobind::handle out, Destination &to, bool &nan_met) {
    npy_intp shape[max_axes + 2];
    int axes = vertices.axes;
    for (int i = 0; i < axes; ++i) shape[i] = vertices.shape[i];
    if (has_rows) shape[axes++] = m;
    if (has_columns) shape[axes++] = n;
    nanobind::object holder;
    if (out.is_none()) {
        holder = nanobind::steal(reinterpret_cast<PyObject *>(new_array(accumulator.descr(), axes, shape)));
    } else {
        given_output(out, accumulator.descr(), axes, shape);
        holder = nanobind::borrow(out);
    }
    PyArrayObject *array = reinterpret_cast<PyArrayObject *>(holder.ptr());
    to.store = accumulator.store;
    to.nan_met = accumulator.has_nan() ? nullptr : &nan_met;
    to.storage = accumulator.storage;
    to.item_bytes = int(PyArray_ITEMSIZE(array));
    to.data = static_cast<char *>(PyArray_DATA(array));
    vertices.strides(array, to.stride, int(has_rows) + int(has_columns));
    to.row = has_rows ? PyArray_STRIDE(array, vertices.axes) : 0;
    to.column = has_columns ? PyArray_STRIDE(array, axes - 1) : to.item_bytes;
    return holder;
}

inline void refuse_nan(bool nan_met) {
    if (nan_met)
        throw std::invalid_argument("a NaN arose, and the result's format has none; give out_format='float32'");
}

inline Operand operand(PyArrayObject *array, const OperandType &type, const Broadcast &vertices, int own) {
    Operand o = {static_cast<const char *>(PyArray_DATA(array)), &type.table, type.element, {}};
    vertices.strides(array, o.stride, own);
    return o;
}

inline int thread_count(i64 work, int threads) { return threads_for(work / thread_work, threads); }

template <class F>
void unlocked(i64 work, const F &f) {
    if (work < quick_work) return f();
    ReleasedGil release;
    f();
}

}  // namespace lowprec
#endif
