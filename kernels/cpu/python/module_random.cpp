// Python face of the random words and of keys.
#include <nanobind/stl/tuple.h>

#include "isa/dispatch.h"
#include "python/arrays.h"
#include "python/derived_keys.h"
#include "python/module.h"
#include "rounding/rounding_jobs.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

std::tuple<u32, u32, u32, u32> philox_words(u32 c0, u32 c1, u32 c2, u32 c3, u64 key, int rounds) {
    Words w;
    switch (rounds) {
        case 7:
            w = philox<7>(c0, c1, c2, c3, key);
            break;
        case 10:
            w = philox<10>(c0, c1, c2, c3, key);
            break;
        default:
            throw std::invalid_argument("rounds must be 7 or 10");
    }
    return {w.word[0], w.word[1], w.word[2], w.word[3]};
}

void random_words(int tag, int bits, u64 key, u64 offset, nb::handle out, int threads) {
    if (bits < 1 || bits > 32) throw std::invalid_argument("bits must be 1 to 32");
    RandomJob job = {tag, bits, key, offset, output_of(out)};
    const i64 n = size_of(out);
    auto loop = table().rounding->random;
    parallel_for(n, 1 << 16, threads, [&](i64 begin, i64 end) { loop(job, begin, end); });
}

}  // namespace

void bind_random(Module &m) {
    m.def("fold_in", [](u64 key, u64 n) { return derive(key, tag_fold_in, n); }, nb::arg("key"), nb::arg("n"));
    m.def("split", [](u64 key, u64 i) { return derive(key, tag_split, i); }, nb::arg("key"), nb::arg("i"));
    m.def("philox", &philox_words, nb::arg("c0"), nb::arg("c1"), nb::arg("c2"), nb::arg("c3"), nb::arg("key"),
          nb::arg("rounds") = 10, "One counter of Philox4x32.");
    m.def("random_words", &random_words, nb::arg("tag"), nb::arg("bits"), nb::arg("key"), nb::arg("offset"),
          nb::arg("out"), nb::arg("threads"), "Fills out (uint16, or uint32 for more than 16 bits).");
}

}  // namespace lowprec
