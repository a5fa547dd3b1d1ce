// Python face of packing.
#include <atomic>

#include "codes/packing_job.h"
#include "isa/dispatch.h"
#include "python/arrays.h"
#include "python/module.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 18;  // codes that are worth a thread

// Calls f(row, begin, end) for pieces of rows; begin is a multiple of 8.
template <class F>
void over_rows(i64 rows, i64 codes, int threads, const F &f) {
    if (rows == 1) return parallel_for(codes, grain, threads, [&](i64 begin, i64 end) { f(i64(0), begin, end); });
    in_pieces(rows, 1, threads_for(std::min(rows, rows * codes / grain), threads), [&](i64 begin, i64 end) {
        for (i64 row = begin; row < end; ++row) f(row, i64(0), codes);
    });
}

PackingJob job_of(int bits, i64 rows, i64 codes, nb::handle narrow, nb::handle packed) {
    if (bits < 1 || bits > 8 || rows < 0 || codes < 0) throw std::invalid_argument("no such packing");
    PackingJob job = {bits, codes, (codes * bits + 7) / 8, nullptr, nullptr};
    if (size_of(narrow) != rows * codes || size_of(packed) != rows * job.bytes)
        throw std::invalid_argument("codes and bytes differ in size");
    return job;
}

bool pack_array(int bits, i64 rows, i64 codes, nb::handle from, nb::handle to, int threads) {
    nb::object input = contiguous(from);
    PackingJob job = job_of(bits, rows, codes, input, to);
    job.from = static_cast<const u8 *>(data_of(input));
    job.to = static_cast<u8 *>(output_of(to));
    auto loop = table().packing->pack;
    ReleasedGil release;
    std::atomic<bool> bad{false};
    over_rows(rows, codes, threads, [&](i64 row, i64 begin, i64 end) {
        if (loop(job, row, begin, end)) bad = true;
    });
    return bad;
}

void unpack_array(int bits, i64 rows, i64 codes, nb::handle from, nb::handle to, int threads) {
    nb::object input = contiguous(from);
    PackingJob job = job_of(bits, rows, codes, to, input);
    job.from = static_cast<const u8 *>(data_of(input));
    job.to = static_cast<u8 *>(output_of(to));
    auto loop = table().packing->unpack;
    ReleasedGil release;
    over_rows(rows, codes, threads, [&](i64 row, i64 begin, i64 end) { loop(job, row, begin, end); });
}

}  // namespace

void bind_packing(Module &m) {
    m.def("pack", &pack_array, nb::arg("bits"), nb::arg("rows"), nb::arg("codes"), nb::arg("x"), nb::arg("out"),
          nb::arg("threads"), "Packs rows of codes; true where one does not fit.");
    m.def("unpack", &unpack_array, nb::arg("bits"), nb::arg("rows"), nb::arg("codes"), nb::arg("x"), nb::arg("out"),
          nb::arg("threads"));
}

}  // namespace lowprec
