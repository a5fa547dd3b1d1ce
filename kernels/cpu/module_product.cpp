// Python face of products and sums: objects prepared once, then one call per set of arrays.
#include "dispatch.h"
#include "module.h"
#include "operands.h"
#include "product.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 thread_work = 1 << 20;  // multiply-adds that are worth a thread
constexpr i64 quick_work = 1 << 15;   // below this, giving up the interpreter's lock costs more than it gains

// How sums are rounded and stored, shared by every call here.
struct Accumulator {
    Step step, final;
    Rounding store;
    Storage storage;
    nb::object dtype;
    bool same;  // step and final are one rounding: a single part needs no second one

    Accumulator(const Rounding *between, bool between_wide, const Rounding *last, bool last_wide,
                const Rounding &stored, int storage_number, nb::object out_dtype, bool one_format)
        : step{between ? *between : Rounding{}, between != nullptr, between_wide},
          final{last ? *last : Rounding{}, last != nullptr, last_wide},
          store(stored),
          storage(Storage(storage_number)),
          dtype(out_dtype),
          same(one_format) {}
    PyArray_Descr *descr() const { return reinterpret_cast<PyArray_Descr *>(dtype.ptr()); }
    bool random() const {
        return (step.active && step.rounding.mode == stochastic) || (final.active && final.rounding.mode == stochastic);
    }
};

// Order of a sum: products between roundings (0: all of a part), parts, stages (0: by the number of parts), order
// inside a group.
struct Order {
    i64 group, splits;
    int stages;
    Adder adder;

    i64 group_of(i64 k) const { return group ? group : std::max<i64>(1, (k + splits - 1) / splits); }
    i64 part(i64 k) const {
        const i64 g = group_of(k), groups = (k + g - 1) / g;
        return g * std::max<i64>((groups + splits - 1) / splits, 1);
    }
};

struct ProductCall {
    OperandType a, b, sums;  // sums: partial sums in the result's storage
    Accumulator accumulator;
    Order order;
    bool exact_products;
};

struct ReduceCall {
    OperandType x;
    Accumulator accumulator;
    Order order;
};

struct SumCall {
    OperandType x;
    Accumulator accumulator;
    int tag;
};

struct MaximumCall {
    OperandType x;
    Accumulator accumulator;
};

// An int, or an int64 array that broadcasts over the vertex axes.
Coordinate coordinate(nb::handle object, const Broadcast &vertices) {
    Coordinate c = {};
    if (PyLong_Check(object.ptr())) {
        c.base = PyLong_AsLongLong(object.ptr());
        if (c.base == -1 && PyErr_Occurred()) throw nb::python_error();
        return c;
    }
    PyArrayObject *array = as_array(object);
    if (PyArray_TYPE(array) != NPY_INT64) throw nb::type_error("coordinates must be ints or int64 arrays");
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

// The flat number of a vertex in C order.
Coordinate flat_index(const Broadcast &vertices) {
    Coordinate c = {};
    i64 step = 1;
    for (int axis = vertices.axes - 1; axis >= 0; --axis) {
        c.stride[axis] = step;
        step *= vertices.shape[axis];
    }
    return c;
}

// The result array: axes of the vertices, then rows and columns where `own` has them.
nb::object target(const Accumulator &accumulator, const Broadcast &vertices, bool has_rows, i64 m, bool has_columns,
                  i64 n, nb::handle out, Target &to) {
    npy_intp shape[max_axes + 2];
    int axes = vertices.axes;
    for (int i = 0; i < axes; ++i) shape[i] = vertices.shape[i];
    if (has_rows) shape[axes++] = m;
    if (has_columns) shape[axes++] = n;
    nb::object holder;
    if (out.is_none()) {
        holder = nb::steal(reinterpret_cast<PyObject *>(new_array(accumulator.descr(), axes, shape)));
    } else {
        PyArrayObject *given = as_array(out);
        if (PyArray_DESCR(given)->type_num != accumulator.descr()->type_num)
            throw nb::type_error("out's dtype is not the one this call was prepared for");
        bool same = PyArray_NDIM(given) == axes;
        for (int i = 0; same && i < axes; ++i) same = PyArray_DIM(given, i) == shape[i];
        if (!same) throw std::invalid_argument("out's shape is not the result's");
        if (!PyArray_ISWRITEABLE(given)) throw std::invalid_argument("out is read-only");
        holder = nb::borrow(out);
    }
    PyArrayObject *array = reinterpret_cast<PyArrayObject *>(holder.ptr());
    to.store = accumulator.store;
    to.storage = accumulator.storage;
    to.item_bytes = int(PyArray_ITEMSIZE(array));
    to.data = static_cast<char *>(PyArray_DATA(array));
    vertices.strides(array, to.stride, int(has_rows) + int(has_columns));
    to.row = has_rows ? PyArray_STRIDE(array, vertices.axes) : 0;
    to.column = has_columns ? PyArray_STRIDE(array, axes - 1) : to.item_bytes;
    return holder;
}

Operand operand(PyArrayObject *array, const OperandType &type, const Broadcast &vertices, int own) {
    Operand o = {static_cast<const char *>(PyArray_DATA(array)), type.table.data(), type.element, {}};
    vertices.strides(array, o.stride, own);
    return o;
}

int thread_count(i64 work, int threads) {
    if (threads <= 0) threads = omp_get_max_threads();
    return int(std::max<i64>(1, std::min<i64>(threads, work / thread_work)));
}

// f(begin, end) over [0, n) cut at multiples of `step`, one piece per thread.
template <class F>
void in_pieces(i64 n, i64 step, i64 work, int threads, const F &f) {
    threads = thread_count(work, threads);
    if (threads == 1) {
        if (n) f(i64(0), n);
        return;
    }
    const i64 piece = ((n + threads - 1) / threads + step - 1) / step * step;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; ++t) {
        const i64 begin = std::min<i64>(n, t * piece), end = std::min<i64>(n, begin + piece);
        if (begin < end) f(begin, end);
    }
}

template <class F>
void unlocked(i64 work, const F &f) {
    if (work < quick_work) return f();
    nb::gil_scoped_release release;
    f();
}

// What chains start from: an array of the result's shape, of its dtype or float32; None: +0.
void take_initial(const ProductCall &call, nb::handle initial, const Broadcast &vertices, bool has_rows,
                  bool has_columns, ProductJob &job) {
    static const OperandType plain(nb::steal(reinterpret_cast<PyObject *>(PyArray_DescrFromType(NPY_FLOAT32))), 0, {});
    job.initial = {};
    if (initial.is_none()) return;
    const bool is_plain = PyArray_TYPE(as_array(initial)) == NPY_FLOAT32;
    PyArrayObject *array = operand_array(initial, is_plain ? plain : call.sums);
    const int own = int(has_rows) + int(has_columns), axes = PyArray_NDIM(array);
    Broadcast check = vertices;
    bool fits = axes >= own && job.k <= job.part;
    if (fits) check.take(array, own);
    fits = fits && check.axes == vertices.axes && check.size() == vertices.size();
    fits = fits && (!has_rows || PyArray_DIM(array, axes - own) == job.m);
    if (!fits || (has_columns && PyArray_DIM(array, axes - 1) != job.n))
        throw std::invalid_argument("initial needs the result's shape, and a product of one part");
    job.initial = operand(array, is_plain ? plain : call.sums, vertices, own);
    job.initial_row = has_rows ? PyArray_STRIDE(array, axes - own) : 0;
    job.initial_column = has_columns ? PyArray_STRIDE(array, axes - 1) : 0;
}

void multiply(const ProductJob &job, i64 vertices, int threads) {
    const i64 work = vertices * job.m * job.n * std::max<i64>(job.k, 1);
    if (vertices == 0 || job.m == 0 || job.n == 0) return;
    auto loop = table().product->product;
    unlocked(work, [&] {
        if (vertices >= 2 * thread_count(work, threads))
            in_pieces(vertices, 1, work, threads,
                      [&](i64 begin, i64 end) { loop(job, {begin, end, 0, job.m, 0, job.n}); });
        else if (job.n >= job.m)
            in_pieces(job.n, 64, work, threads,
                      [&](i64 begin, i64 end) { loop(job, {0, vertices, 0, job.m, begin, end}); });
        else
            in_pieces(job.m, 24, work, threads,
                      [&](i64 begin, i64 end) { loop(job, {0, vertices, begin, end, 0, job.n}); });
    });
}

// batch None: the flat number of the vertex.
nb::object product(const ProductCall &call, nb::handle left, nb::handle right, nb::handle key, nb::handle row,
                   nb::handle column, nb::handle first_group, nb::handle batch, nb::handle out, int threads,
                   nb::handle initial) {
    PyArrayObject *a = operand_array(left, call.a), *b = operand_array(right, call.b);
    const int a_own = std::min(PyArray_NDIM(a), 2), b_own = std::min(PyArray_NDIM(b), 2);
    if (a_own == 0 || b_own == 0) throw std::invalid_argument("a product needs operands of at least one axis");
    ProductJob job;
    job.k = PyArray_DIM(a, PyArray_NDIM(a) - 1);
    job.m = a_own == 2 ? PyArray_DIM(a, PyArray_NDIM(a) - 2) : 1;
    const i64 right_k = PyArray_DIM(b, PyArray_NDIM(b) - b_own);
    job.n = b_own == 2 ? PyArray_DIM(b, PyArray_NDIM(b) - 1) : 1;
    if (right_k != job.k)
        throw std::invalid_argument("the inner lengths differ: " + std::to_string(job.k) + " and " +
                                    std::to_string(right_k));
    Broadcast vertices;
    vertices.take(a, a_own);
    vertices.take(b, b_own);
    job.axes = vertices.axes;
    for (int i = 0; i < vertices.axes; ++i) job.shape[i] = vertices.shape[i];
    job.a = operand(a, call.a, vertices, a_own);
    job.b = operand(b, call.b, vertices, b_own);
    job.a_k = PyArray_STRIDE(a, PyArray_NDIM(a) - 1);
    job.a_row = a_own == 2 ? PyArray_STRIDE(a, PyArray_NDIM(a) - 2) : 0;
    job.b_k = PyArray_STRIDE(b, PyArray_NDIM(b) - b_own);
    job.b_column = b_own == 2 ? PyArray_STRIDE(b, PyArray_NDIM(b) - 1) : 0;
    job.row = coordinate(row, vertices);
    job.column = coordinate(column, vertices);
    job.first_group = coordinate(first_group, vertices);
    job.batch = batch.is_none() ? flat_index(vertices) : coordinate(batch, vertices);
    if (call.accumulator.random() && batch.is_none() && vertices.size() > (1 << 24))
        throw std::invalid_argument("stochastic rounding tells at most 2^24 products of one call apart");
    nb::object result = target(call.accumulator, vertices, a_own == 2, job.m, b_own == 2, job.n, out, job.out);
    job.step = call.accumulator.step;
    job.final = call.accumulator.final;
    job.adder = call.order.adder;
    job.group = call.order.group_of(job.k);
    job.part = call.order.part(job.k);
    job.stages = call.order.stages;
    take_initial(call, initial, vertices, a_own == 2, b_own == 2, job);
    const bool stepped = job.k > 0 || !job.initial.data;
    if (call.accumulator.same && stepped && job.k <= job.part && job.stages <= 1) job.final.active = 0;
    job.key = key_bits(key, call.accumulator.random());
    job.half_operands = call.exact_products;
    multiply(job, vertices.size(), threads);
    return result;
}

// x (v.., m, k, n) -> (v.., m, n).
nb::object reduce(const ReduceCall &call, nb::handle x, nb::handle key, nb::handle row, nb::handle column,
                  nb::handle first_group, nb::handle batch, nb::handle out, int threads) {
    PyArrayObject *array = operand_array(x, call.x);
    const int last = PyArray_NDIM(array) - 1;
    if (last < 2) throw std::invalid_argument("reduce needs axes (.., m, k, n)");
    ReduceJob job;
    Broadcast vertices;
    vertices.take(array, 3);
    job.axes = vertices.axes;
    for (int i = 0; i < vertices.axes; ++i) job.shape[i] = vertices.shape[i];
    job.x = operand(array, call.x, vertices, 3);
    job.m = PyArray_DIM(array, last - 2);
    job.k = PyArray_DIM(array, last - 1);
    job.n = PyArray_DIM(array, last);
    job.x_row = PyArray_STRIDE(array, last - 2);
    job.x_k = PyArray_STRIDE(array, last - 1);
    job.x_column = PyArray_STRIDE(array, last);
    job.row = coordinate(row, vertices);
    job.column = coordinate(column, vertices);
    job.first_group = coordinate(first_group, vertices);
    job.batch = coordinate(batch, vertices);
    nb::object result = target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out);
    job.step = call.accumulator.step;
    job.final = call.accumulator.final;
    job.group = call.order.group_of(job.k);
    job.part = call.order.part(job.k);
    job.stages = call.order.stages;
    if (call.accumulator.same && job.k <= job.part && job.stages <= 1) job.final.active = 0;
    job.key = key_bits(key, call.accumulator.random());
    const i64 rows = vertices.size() * job.m, work = 4 * rows * job.n * (job.k + 1);
    auto loop = table().product->reduce;
    if (job.n)
        unlocked(work, [&] { in_pieces(rows, 16, work, threads, [&](i64 begin, i64 end) { loop(job, begin, end); }); });
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
    job.parts = {static_cast<const char *>(PyArray_DATA(array)), call.x.table.data(), call.x.element, {}};
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
    nb::object result = target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out);
    job.step = call.accumulator.final;
    job.tag = call.tag;
    job.key = key_bits(key, call.accumulator.random());
    if (!call.accumulator.random()) join_rows(job);
    const i64 rows = vertices.size() * job.m, work = 4 * rows * job.n * (job.parts_count + 1);
    auto loop = table().product->sum;
    unlocked(work, [&] { in_pieces(rows, 1, work, threads, [&](i64 begin, i64 end) { loop(job, begin, end); }); });
    return result;
}

// x (m, k, n) -> (m, n).
nb::object maximum(const MaximumCall &call, nb::handle x, nb::handle out, int threads) {
    PyArrayObject *array = operand_array(x, call.x);
    if (PyArray_NDIM(array) != 3) throw std::invalid_argument("maximum needs axes (m, k, n)");
    MaximumJob job;
    Broadcast none;
    job.x = operand(array, call.x, none, 3);
    job.m = PyArray_DIM(array, 0);
    job.k = PyArray_DIM(array, 1);
    job.n = PyArray_DIM(array, 2);
    job.x_row = PyArray_STRIDE(array, 0);
    job.x_k = PyArray_STRIDE(array, 1);
    job.x_column = PyArray_STRIDE(array, 2);
    nb::object result = target(call.accumulator, none, true, job.m, true, job.n, out, job.out);
    const i64 work = job.m * job.n * job.k;
    auto loop = table().product->maximum;
    if (job.n)
        unlocked(work, [&] { in_pieces(job.m, 1, work, threads, [&](i64 begin, i64 end) { loop(job, begin, end); }); });
    return result;
}

}  // namespace

void bind_product(nb::module_ &m) {
    nb::class_<Accumulator>(m, "Accumulator", "How sums are rounded and stored.")
        .def(nb::init<const Rounding *, bool, const Rounding *, bool, const Rounding &, int, nb::object, bool>(),
             nb::arg("between").none(), nb::arg("between_wide"), nb::arg("last").none(), nb::arg("last_wide"),
             nb::arg("stored"), nb::arg("storage"), nb::arg("dtype"), nb::arg("one_format"));
    nb::class_<Order>(m, "Order", "In which order a sum is made.")
        .def("__init__", [](Order *self, i64 group, i64 splits, int stages, int adder) {
            new (self) Order{group, splits, stages, Adder(adder)};
        });
    nb::class_<ProductCall>(m, "ProductCall", "A prepared matmul or matmul_part.")
        .def("__init__", [](ProductCall *self, const OperandType &a, const OperandType &b, const OperandType &sums,
                            const Accumulator &accumulator, const Order &order,
                            bool exact) { new (self) ProductCall{a, b, sums, accumulator, order, exact}; })
        .def("__call__", &product, nb::arg("a"), nb::arg("b"), nb::arg("key").none(), nb::arg("row"), nb::arg("column"),
             nb::arg("first_group"), nb::arg("batch").none(), nb::arg("out").none(), nb::arg("threads"),
             nb::arg("initial").none() = nb::none());
    nb::class_<ReduceCall>(m, "ReduceCall", "A prepared reduce_sum or reduce_part.")
        .def("__init__", [](ReduceCall *self, const OperandType &x, const Accumulator &accumulator,
                            const Order &order) { new (self) ReduceCall{x, accumulator, order}; })
        .def("__call__", &reduce, nb::arg("x"), nb::arg("key").none(), nb::arg("row"), nb::arg("column"),
             nb::arg("first_group"), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads"));
    nb::class_<SumCall>(m, "SumCall", "A prepared sum_parts.")
        .def("__init__", [](SumCall *self, const OperandType &x, const Accumulator &accumulator,
                            int tag) { new (self) SumCall{x, accumulator, tag}; })
        .def("__call__", &sum_parts, nb::arg("parts"), nb::arg("key").none(), nb::arg("index"), nb::arg("row"),
             nb::arg("column"), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads"));
    nb::class_<MaximumCall>(m, "MaximumCall", "A prepared reduce_max.")
        .def("__init__", [](MaximumCall *self, const OperandType &x,
                            const Accumulator &accumulator) { new (self) MaximumCall{x, accumulator}; })
        .def("__call__", &maximum, nb::arg("x"), nb::arg("out").none(), nb::arg("threads"));
}

}  // namespace lowprec
