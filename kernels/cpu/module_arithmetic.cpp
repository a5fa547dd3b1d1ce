// Python face of exact arithmetic.
#include "arithmetic.h"
#include "arrays.h"
#include "dispatch.h"
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

const void *terms(nb::handle array, i64 count) {
    if (size_of(array) != count || !PyArray_IS_C_CONTIGUOUS(as_array(array)))
        throw std::invalid_argument("terms must be contiguous and all of one shape");
    return data_of(array);
}

void sum_columns(const Rounding &rounding, int kind, bool ieee_double, i64 outer, i64 size, i64 inner, i64 block,
                 nb::handle x, nb::handle y, nb::handle random, nb::handle out, int threads) {
    const i64 count = outer * size * inner, blocks = block > 0 ? (size + block - 1) / block : 0;
    if (kind < 0 || kind > kahan_sum || block < 1) throw std::invalid_argument("unknown kind of sum, or no block");
    const i64 results = kind == running_sum ? count : outer * inner * (kind == plain_sum ? blocks : 1);
    if (size_of(out) != results) throw std::invalid_argument("out has the wrong size");
    ColumnJob job = {};
    job.rounding = rounding;
    job.kind = kind;
    job.ieee_double = ieee_double;
    job.size = size;
    job.inner = inner;
    job.block = block;
    job.x = terms(x, count);
    job.wide_terms = PyArray_ITEMSIZE(as_array(x)) == 8;
    if (!y.is_none()) job.y = static_cast<const float *>(terms(y, count));
    job.to = static_cast<double *>(output_of(out));
    if (!random.is_none()) {
        if (size_of(random) != (kind == kahan_sum ? 4 : 1) * count || !PyArray_IS_C_CONTIGUOUS(as_array(random)))
            throw std::invalid_argument("random bits have the wrong size");
        job.random = data_of(random);
        job.wide_random = PyArray_ITEMSIZE(as_array(random)) == 4;
    } else if (rounding.mode == stochastic) {
        throw std::invalid_argument("stochastic rounding needs random bits");
    }
    auto loop = table().arithmetic->columns;
    nb::gil_scoped_release release;
    parallel_for(outer * inner, std::max<i64>(1, grain / std::max<i64>(size, 1)), threads,
                 [&](i64 begin, i64 end) { loop(job, begin, end); });
}

}  // namespace

void bind_arithmetic(nb::module_ &m) {
    m.def("exact", &exact_array, nb::arg("operation"), nb::arg("mode"), nb::arg("down"), nb::arg("operands"),
          nb::arg("out"), nb::arg("left"), nb::arg("threads"),
          "One operation on doubles rounded to a double by a mode; true where elements are left to the reference.");
    m.def("sum_columns", &sum_columns, nb::arg("rounding"), nb::arg("kind"), nb::arg("ieee_double"), nb::arg("outer"),
          nb::arg("size"), nb::arg("inner"), nb::arg("block"), nb::arg("x"), nb::arg("y").none(),
          nb::arg("random").none(), nb::arg("out"), nb::arg("threads"),
          "Sums over the middle axis, every step rounded once.");
}

}  // namespace lowprec
