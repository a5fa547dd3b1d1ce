// Python face of products: objects prepared once, then one call per set of arrays.
#include "python/module.h"
#include "python/sum_calls.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

struct ProductCall {
    OperandType a, b, sums;  // sums: partial sums in the result's storage
    Accumulator accumulator;
    Order order;
    bool exact_products;
    Alignment alignment;
};

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

// What chains start from: an array of the result's shape, of its dtype or float32; None: +0.
void take_initial(const ProductCall &call, nb::handle initial, const Broadcast &vertices, bool has_rows,
                  bool has_columns, ProductJob &job) {
    static const OperandType plain(nb::steal(reinterpret_cast<PyObject *>(PyArray_DescrFromType(NPY_FLOAT32))), 0, {});
    job.initial = {};
    if (initial.is_none()) return;
    const bool is_plain = PyArray_Check(initial.ptr()) && PyArray_TYPE(as_array(initial)) == NPY_FLOAT32;
    const char *also = call.sums.type_number == NPY_FLOAT32 ? "" : " (or of float32)";
    PyArrayObject *array = operand_array(initial, is_plain ? plain : call.sums, "initial", also);
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
    auto loop = table().sums->product;
    unlocked(work, [&] {
        if (vertices >= 2 * thread_count(work, threads))
            in_pieces(vertices, 1, thread_count(work, threads),
                      [&](i64 begin, i64 end) { loop(job, {begin, end, 0, job.m, 0, job.n}); });
        else if (job.n >= job.m)
            in_pieces(job.n, 64, thread_count(work, threads),
                      [&](i64 begin, i64 end) { loop(job, {0, vertices, 0, job.m, begin, end}); });
        else
            in_pieces(job.m, 24, thread_count(work, threads),
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
    bool nan_met = false;
    nb::object result = target(call.accumulator, vertices, a_own == 2, job.m, b_own == 2, job.n, out, job.out, nan_met);
    job.step = call.accumulator.step;
    job.final = call.accumulator.final;
    job.adder = call.order.adder;
    job.alignment = call.alignment;
    const Cut cut = call.order.cut(job.k);
    job.group = cut.group;
    job.part = cut.part;
    job.run = cut.run;
    job.stages = cut.stages;
    take_initial(call, initial, vertices, a_own == 2, b_own == 2, job);
    const bool stepped = job.k > 0 || !job.initial.data;
    if (call.accumulator.same && stepped && job.k <= job.part && job.stages == 1) job.final.active = 0;
    job.key = key_bits(key, call.accumulator.random());
    job.half_operands = call.exact_products;
    multiply(job, vertices.size(), threads);
    refuse_nan(nan_met);
    return result;
}

}  // namespace

void bind_product(Module &m) {
    Class<Accumulator>(m, "Accumulator", "How sums are rounded and stored.")
        .def(nb::init<const Rounding *, bool, const Rounding *, bool, const Rounding &, int, nb::object, bool>(),
             nb::arg("between").none(), nb::arg("between_wide"), nb::arg("last").none(), nb::arg("last_wide"),
             nb::arg("stored"), nb::arg("storage"), nb::arg("dtype"), nb::arg("one_format"));
    Class<Order>(m, "Order", nb::type_slots(holds_order<Order>), "In which order a sum is made.")
        .def(nb::init<nb::object, int>(), nb::arg("cut"), nb::arg("adder"));
    Class<ProductCall>(m, "ProductCall", nb::type_slots(holds_order<ProductCall>), "A prepared matmul or matmul_part.")
        .def("__init__",
             [](ProductCall *self, const OperandType &a, const OperandType &b, const OperandType &sums,
                const Accumulator &accumulator, const Order &order, bool exact, int aligned_bits,
                const std::tuple<int, int> &least) {
                 const Alignment alignment = {aligned_bits, std::get<0>(least), std::get<1>(least)};
                 new (self) ProductCall{a, b, sums, accumulator, order, exact, alignment};
             })
        .def("__call__", &product, nb::arg("a"), nb::arg("b"), nb::arg("key").none(), nb::arg("row"), nb::arg("column"),
             nb::arg("first_group"), nb::arg("batch").none(), nb::arg("out").none(), nb::arg("threads"),
             nb::arg("initial").none() = nb::none());
}

}  // namespace lowprec
