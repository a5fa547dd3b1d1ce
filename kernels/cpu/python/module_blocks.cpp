// Python face of block formats: prepared objects, then one call per array.
#include <atomic>
#include <mutex>

#include "blocks/block_jobs.h"
#include "isa/dispatch.h"
#include "python/arrays.h"
#include "python/module.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 16;    // elements that are worth a thread
constexpr i64 columns = 1 << 11;  // columns that are done together; the loops hold no more

// Calls f(begin, end, left, right) for pieces of the block rows and columns.
template <class F>
void over_blocks(const BlockShape &s, int threads, const F &f) {
    const i64 tiles = (s.inner + columns - 1) / columns, units = s.lines * s.per_line * tiles;
    const auto some = [&](i64 begin, i64 end) {
        if (tiles == 1) return f(begin, end, i64(0), s.inner);
        for (i64 unit = begin; unit < end; ++unit) {
            const i64 k = unit / tiles, left = unit % tiles * columns;
            f(k, k + 1, left, std::min(s.inner, left + columns));
        }
    };
    const i64 elements = s.lines * s.length * s.inner;
    in_pieces(units, 1, threads_for(std::min(units, elements / grain), threads), some);
}

BlockShape shape_of(i64 lines, i64 length, i64 inner, i64 block) {
    if (lines < 0 || length < 0 || inner < 0 || block < 1) throw std::invalid_argument("no such blocks");
    return {lines, length, inner, block, (length + block - 1) / block};
}

void check_size(nb::handle array, i64 size) {
    if (size_of(array) != size) throw std::invalid_argument("arrays of a block format differ in size");
}

bool quantize_array(const BlockJob &prepared, nb::handle x, nb::handle elements, nb::handle scales,
                    nb::typed<nb::tuple, i64, i64, i64, i64> shape, double tensor, double wanted_divisor, double factor,
                    u64 key, u64 offset, int threads) {
    nb::object input = contiguous(x);
    BlockJob job = prepared;
    job.shape =
        shape_of(nb::cast<i64>(shape[0]), nb::cast<i64>(shape[1]), nb::cast<i64>(shape[2]), nb::cast<i64>(shape[3]));
    const BlockShape &s = job.shape;
    check_size(input, s.lines * s.length * s.inner);
    check_size(elements, s.lines * s.length * s.inner);
    job.from = data_of(input);
    for (ConvertJob *rounding : {&job.elements, &job.finite}) {
        rounding->to = output_of(elements);
        rounding->key = key;
        rounding->offset = offset;
    }
    job.tensor = tensor;
    job.wanted_divisor = wanted_divisor;
    job.factor = factor;
    if (job.choice != given_scale) {
        check_size(scales, s.lines * s.per_line * s.inner);
        job.scales = output_of(scales);
        job.scale_bytes = int(PyArray_ITEMSIZE(as_array(scales)));
    }
    auto loop = table().blocks->quantize;
    ReleasedGil release;
    std::atomic<bool> bad{false};
    over_blocks(s, threads, [&](i64 begin, i64 end, i64 left, i64 right) {
        if (loop(job, begin, end, left, right)) bad = true;
    });
    return bad;
}

bool dequantize_array(const SpreadJob &prepared, nb::handle elements, nb::handle scales, nb::handle out,
                      nb::typed<nb::tuple, i64, i64, i64, i64> shape, double tensor, double factor, int threads) {
    nb::object input = contiguous(elements), given = scales.is_none() ? nb::none() : contiguous(scales);
    SpreadJob job = prepared;
    job.shape =
        shape_of(nb::cast<i64>(shape[0]), nb::cast<i64>(shape[1]), nb::cast<i64>(shape[2]), nb::cast<i64>(shape[3]));
    const BlockShape &s = job.shape;
    check_size(input, s.lines * s.length * s.inner);
    check_size(out, s.lines * s.length * s.inner);
    job.given = scales.is_none();
    if (!job.given) {
        check_size(given, s.lines * s.per_line * s.inner);
        job.scales = data_of(given);
    }
    job.from = data_of(input);
    job.to = output_of(out);
    job.out = PyArray_ITEMSIZE(as_array(out)) == 8 ? real64 : real32;
    job.tensor = tensor;
    job.factor = factor;
    auto loop = table().blocks->dequantize;
    ReleasedGil release;
    std::atomic<bool> bad{false};
    over_blocks(s, threads, [&](i64 begin, i64 end, i64 left, i64 right) {
        if (loop(job, begin, end, left, right)) bad = true;
    });
    return bad;
}

double magnitude_of(nb::handle x, int in, const Format &source, int threads) {
    nb::object input = contiguous(x);
    const MagnitudeJob job = {Storage(in), source, data_of(input)};
    const i64 n = size_of(input);
    auto loop = table().blocks->magnitude;
    ReleasedGil release;
    double most = 0;
    std::mutex lock;
    parallel_for(n, grain, threads, [&](i64 begin, i64 end) {
        const double some = loop(job, begin, end);
        const std::lock_guard<std::mutex> guard(lock);
        most = std::max(most, some);
    });
    return most;
}

// Everything of a quantisation but the arrays, the key and the numbers of the tensor.
void make_quantizer(BlockJob *self, const ConvertJob &elements, const Format &source, int in, int choice, int scaling,
                    nb::typed<nb::tuple, bool, bool, bool, bool, bool> flags,
                    nb::typed<nb::tuple, int, int, int, int> exponents, u64 carry, const Rounding &scale,
                    double smallest, bool odd_scales, u64 scale_nan) {
    BlockJob &job = *new (self) BlockJob();
    job.elements = job.finite = elements;
    Rounding &finite = job.finite.rounding;
    finite.inf_pos = finite.over_pos;
    finite.inf_neg = finite.over_neg;
    if (finite.format.nan_code == ~0ull) finite.format.nan_code = 1u << 31;  // no code; NaN need not be looked for
    job.source = source;
    job.in = Storage(in);
    job.choice = choice;
    job.scaling = scaling;
    job.wide_in = nb::cast<bool>(flags[0]);
    job.wide_values = nb::cast<bool>(flags[1]);
    job.guard = nb::cast<bool>(flags[2]);
    job.voids = nb::cast<bool>(flags[3]);
    job.integers = nb::cast<bool>(flags[4]);
    job.element_emax = nb::cast<int>(exponents[0]);
    job.least = nb::cast<int>(exponents[1]);
    job.largest = nb::cast<int>(exponents[2]);
    job.code_base = nb::cast<int>(exponents[3]);
    job.carry = carry;
    job.scale = scale;
    job.smallest = smallest;
    job.odd_scales = odd_scales;
    job.scale_nan = scale_nan;
}

SpreadJob make_spreader(const Format &element, int in, const Format &scale, int scales_in, bool integers,
                        double quantum) {
    SpreadJob job = {};
    job.element = element;
    job.scale = scale;
    job.in = Storage(in);
    job.scales_in = Storage(scales_in);
    job.integers = integers;
    job.quantum = quantum;
    return job;
}

}  // namespace

void bind_blocks(Module &m) {
    Class<BlockJob>(m, "BlockQuantizer", "A block format, a scale rule and a rounding.")
        .def("__init__", &make_quantizer);
    Class<SpreadJob>(m, "BlockSpreader", "A block format on the way back.")
        .def("__init__", [](SpreadJob *self, const Format &element, int in, const Format &scale, int scales_in,
                            bool integers, double quantum) {
            new (self) SpreadJob(make_spreader(element, in, scale, scales_in, integers, quantum));
        });
    m.def("quantize_blocks", &quantize_array, nb::arg("quantizer"), nb::arg("x"), nb::arg("elements"),
          nb::arg("scales").none(), nb::arg("shape"), nb::arg("tensor"), nb::arg("wanted_divisor"), nb::arg("factor"),
          nb::arg("key"), nb::arg("offset"), nb::arg("threads"),
          "Elements and scales of x, seen as (lines, length, inner) with blocks along length; true where a NaN met a "
          "format that has none.");
    m.def("dequantize_blocks", &dequantize_array, nb::arg("spreader"), nb::arg("elements"), nb::arg("scales").none(),
          nb::arg("out"), nb::arg("shape"), nb::arg("tensor"), nb::arg("factor"), nb::arg("threads"),
          "Values of elements and scales; true where a code is wider than the format.");
    m.def("largest_magnitude", &magnitude_of, nb::arg("x"), nb::arg("in_storage"), nb::arg("source"),
          nb::arg("threads"), "The largest finite magnitude of x, 0 if there is none.");
}

}  // namespace lowprec
