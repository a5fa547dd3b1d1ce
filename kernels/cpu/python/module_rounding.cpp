// Python face of rounding and decoding: prepared objects, then one call per array.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <string>
#include <vector>

#include "isa/dispatch.h"
#include "python/array_operands.h"
#include "python/module.h"
#include "rounding/rounding_jobs.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 16;  // elements that are worth a thread
constexpr i64 quick = 1 << 13;  // below this, giving up the interpreter's lock costs more than it gains

Format make_format(int exponent_bits, int mantissa_bits, int emin, bool subnormals, bool zero, bool negative_zero,
                   u64 sign_bit, u64 max_code, u64 inf_code, u64 nan_code) {
    return {exponent_bits, mantissa_bits, emin,     subnormals, zero,
            negative_zero, sign_bit,      max_code, inf_code,   nan_code};
}

Rounding make_rounding(const Format &format, int mode, int random_bits, bool flush, u64 over_pos, u64 over_neg,
                       u64 inf_pos, u64 inf_neg, u64 negative, u64 none) {
    if (mode < 0 || mode >= mode_count) throw std::invalid_argument("unknown rounding mode number");
    if (random_bits < 0 || random_bits > 32) throw std::invalid_argument("random_bits must be 0 to 32");
    return {format, mode, random_bits, flush, over_pos, over_neg, inf_pos, inf_neg, negative, none};
}

// Everything about a conversion but the arrays and the key.
ConvertJob make_conversion(const Rounding &rounding, const Format &source, const Rounding &carrier, int in, int out,
                           bool as_value, bool wide) {
    return {rounding, source, carrier, Storage(in), Storage(out), as_value, wide, 0, 0, nullptr, nullptr};
}

// Elements [0, n) of a job that has its arrays. True where a NaN met a format that has none.
bool convert_all(ConvertJob &job, i64 n, int threads) {
    job.count = n;
    auto loop = table().rounding->convert;
    if (n < quick) return loop(job, 0, n);
    ReleasedGil release;
    std::atomic<bool> bad{false};
    parallel_for(n, grain, threads, [&](i64 begin, i64 end) {
        if (loop(job, begin, end)) bad = true;
    });
    return bad;
}

bool convert_array(const ConvertJob &conversion, nb::handle x, nb::handle out, u64 key, u64 offset, int threads) {
    nb::object input = contiguous(x);
    ConvertJob job = conversion;
    job.from = data_of(input);
    job.to = output_of(out);
    job.key = key;
    job.offset = offset;
    const i64 n = size_of(input);
    if (size_of(out) != n) throw std::invalid_argument("input and output differ in size");
    return convert_all(job, n, threads);
}

// What calls on whole arrays expect: ordinary arrays of one dtype, and results of another.
struct WholeArrays {
    int in_type;
    nb::object dtype;  // of results

    WholeArrays(nb::handle in, nb::object out)
        : in_type(reinterpret_cast<PyArray_Descr *>(in.ptr())->type_num), dtype(out) {}

    static bool ordinary(nb::handle x, int type) {
        if (!PyArray_CheckExact(x.ptr())) return false;
        PyArrayObject *array = reinterpret_cast<PyArrayObject *>(x.ptr());
        return PyArray_DESCR(array)->type_num == type && PyArray_ISCARRAY_RO(array);
    }

    // `out`, where it is of the input's shape and apart from it or in its very place, or a new array; none where `out`
    // is another.
    nb::object result(PyArrayObject *input, nb::handle out) const {
        PyArray_Descr *descr = reinterpret_cast<PyArray_Descr *>(dtype.ptr());
        if (out.is_none()) return nb::steal((PyObject *)new_array(descr, PyArray_NDIM(input), PyArray_DIMS(input)));
        if (!ordinary(out, descr->type_num)) return nb::none();
        PyArrayObject *given = as_array(out);
        if (!PyArray_ISWRITEABLE(given) || !PyArray_SAMESHAPE(given, input)) return nb::none();
        const char *from = PyArray_BYTES(input), *to = PyArray_BYTES(given);
        const bool apart = to + PyArray_NBYTES(given) <= from || from + PyArray_NBYTES(input) <= to;
        const bool in_place = from == to && PyArray_ITEMSIZE(given) == PyArray_ITEMSIZE(input);
        return apart || in_place ? nb::borrow(out) : nb::none();
    }
};

struct WholeConversion {
    ConvertJob conversion;
    WholeArrays arrays;
    bool keyed;  // a call asks for a key
};

// The result; None for arrays that are not ordinary, and where a NaN meets a format that has none.
nb::object convert_whole(const WholeConversion &call, nb::handle x, nb::handle out, u64 key, int threads) {
    if (!WholeArrays::ordinary(x, call.arrays.in_type)) return nb::none();
    nb::object result = call.arrays.result(as_array(x), out);
    if (result.is_none()) return result;
    ConvertJob job = call.conversion;
    job.from = data_of(x);
    job.to = data_of(result);
    job.key = key;
    return convert_all(job, size_of(x), threads) ? nb::none() : result;
}

void decode_all(DecodeJob &job, i64 n, int threads) {
    job.count = n;
    auto loop = table().rounding->decode;
    if (n < quick) return loop(job, 0, n);
    ReleasedGil release;
    parallel_for(n, grain, threads, [&](i64 begin, i64 end) { loop(job, begin, end); });
}

void decode_array(const Format &format, nb::handle codes, nb::handle out, int in_storage, int out_storage,
                  int threads) {
    nb::object input = contiguous(codes);
    DecodeJob job = {format, Storage(in_storage), Storage(out_storage), data_of(input), output_of(out)};
    const i64 n = size_of(input);
    if (size_of(out) != n) throw std::invalid_argument("input and output differ in size");
    decode_all(job, n, threads);
}

struct WholeDecoding {
    DecodeJob decoding;
    WholeArrays arrays;
};

// The values; None for arrays that are not ordinary.
nb::object decode_whole(const WholeDecoding &call, nb::handle codes, nb::handle out, int threads) {
    if (!WholeArrays::ordinary(codes, call.arrays.in_type)) return nb::none();
    nb::object result = call.arrays.result(as_array(codes), out);
    if (result.is_none()) return result;
    DecodeJob job = call.decoding;
    job.from = data_of(codes);
    job.to = data_of(result);
    decode_all(job, size_of(codes), threads);
    return result;
}

}  // namespace

void bind_rounding(Module &m) {
#define LP_NAME(mode) #mode,
    m.def(
        "modes", [] { return std::vector<std::string>{LP_MODES(LP_NAME)}; }, "Names of the rounding modes, in order.");
#undef LP_NAME
    Class<Format>(m, "Format", "The numbers of a FloatFormat.")
        .def("__init__",
             [](Format *self, int e, int mb, int emin, bool sub, bool zero, bool nz, u64 sign, u64 max, u64 inf,
                u64 nan) { new (self) Format(make_format(e, mb, emin, sub, zero, nz, sign, max, inf, nan)); });
    Class<Rounding>(m, "NativeRounding", "A format, a mode and the codes of special results.")
        .def("__init__", [](Rounding *self, const Format &f, int mode, int bits, bool flush, u64 over_pos, u64 over_neg,
                            u64 inf_pos, u64 inf_neg, u64 negative, u64 none) {
            new (self)
                Rounding(make_rounding(f, mode, bits, flush, over_pos, over_neg, inf_pos, inf_neg, negative, none));
        });
    Class<ConvertJob>(m, "NativeConversion", "A rounding between two storages.")
        .def("__init__", [](ConvertJob *self, const Rounding &r, const Format &source, const Rounding &carrier, int in,
                            int out, bool as_value, bool wide) {
            new (self) ConvertJob(make_conversion(r, source, carrier, in, out, as_value, wide));
        });
    Class<WholeConversion>(m, "WholeConversion", "A conversion of ordinary arrays of one dtype.")
        .def("__init__", [](WholeConversion *self, const ConvertJob &conversion, nb::handle in, nb::object out,
                            bool keyed) { new (self) WholeConversion{conversion, {in, out}, keyed}; })
        .def("__call__", &convert_whole, nb::arg("x"), nb::arg("out").none(), nb::arg("key"), nb::arg("threads"));
    Class<WholeDecoding>(m, "WholeDecoding", "A decoding of ordinary arrays of one dtype.")
        .def("__init__",
             [](WholeDecoding *self, const Format &format, int in_storage, int out_storage, nb::handle in,
                nb::object out) {
                 const DecodeJob job = {format, Storage(in_storage), Storage(out_storage), nullptr, nullptr};
                 new (self) WholeDecoding{job, {in, out}};
             })
        .def("__call__", &decode_whole, nb::arg("codes"), nb::arg("out").none(), nb::arg("threads"));
    m.def("convert", &convert_array, nb::arg("conversion"), nb::arg("x"), nb::arg("out"), nb::arg("key"),
          nb::arg("offset"), nb::arg("threads"), "Rounds x into out; True where a NaN met a format that has none.");
    m.def("decode", &decode_array, nb::arg("format"), nb::arg("codes"), nb::arg("out"), nb::arg("in_storage"),
          nb::arg("out_storage"), nb::arg("threads"));
}

}  // namespace lowprec
