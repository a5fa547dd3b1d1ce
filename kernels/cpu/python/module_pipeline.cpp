// Prepared calls one after another in one call, over pieces of rows that stay in the cache: a row of every result needs
// nothing of the others but the same row. What only these calls read has memory for the rows of one piece.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>

#include "python/module.h"
#include "python/pipeline_steps.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 15;  // elements, of all results, that are worth a thread
constexpr i64 quick = 1 << 12;  // below this, giving up the interpreter's lock costs more than it gains
constexpr i64 together = 64;    // threads' first rows are multiples of this where there are many

// Steps of one number of rows, of which each piece goes through all before the next.
struct Part {
    i64 rows, piece, work;
    std::vector<std::unique_ptr<Step>> steps;

    bool run(i64 begin, i64 end, i64 thread) const {
        bool refused = false;
        const i64 each = steps.size() == 1 && steps[0]->whole() ? end - begin : piece;
        for (i64 at = begin; at < end; at += each)
            for (const auto &step : steps) refused |= step->run(at, std::min(end, at + each), thread);
        return refused;
    }
};

class PipelineCall {
  public:
    explicit PipelineCall(nb::object bytes)
        : memory(bytes), first(static_cast<char *>(output_of(bytes))), size(u64(PyArray_NBYTES(as_array(bytes)))) {}
    PipelineCall(const PipelineCall &) = delete;

    void part(i64 rows, i64 piece) {
        if (rows < 1 || piece < 1) throw std::invalid_argument("a part has rows, and a piece of them");
        parts.push_back({rows, piece, 0, {}});
    }

    void step(nb::object call, nb::tuple operands, nb::object out, const std::vector<i64> &rows,
              const std::vector<u64> &folds) {
        add<ElementwiseStep>(nb::cast<const ElementwiseCall &>(call), operands, out, rows, folds, call);
    }
    void sum(nb::object call, nb::object x, nb::object out, const std::vector<i64> &rows,
             const std::vector<u64> &folds) {
        add<RowsStep<ReduceCall, ReduceJob>>(nb::cast<const ReduceCall &>(call), x, out, rows, folds, call);
    }
    void maximum(nb::object call, nb::object x, nb::object out, const std::vector<i64> &rows) {
        add<RowsStep<MaximumCall, MaximumJob>>(nb::cast<const MaximumCall &>(call), x, out, rows, {}, call);
    }

    void run(nb::handle key, int threads) {
        for (const Part &part : parts)
            for (const auto &step : part.steps) step->take_key(key);
        bool refused;
        if (work < quick) {
            refused = run_parts(1);
        } else {
            ReleasedGil release;
            refused = run_parts(threads);
        }
        if (refused) throw std::invalid_argument("a NaN was met and the format has none");
    }

  private:
    template <class Kind, class Call, class Operands>
    void add(const Call &call, Operands operands, nb::object out, const std::vector<i64> &rows,
             const std::vector<u64> &folds, nb::object prepared) {
        if (parts.empty()) throw std::invalid_argument("no such step");
        Part &part = parts.back();
        const nb::object holds = nb::make_tuple(prepared, operands, out);
        part.steps.push_back(std::make_unique<Kind>(call, operands, out, part.rows, rows, folds, holds));
        part.work += part.steps.back()->work;
        work += part.steps.back()->work;
    }

    bool run_parts(int threads) {
        std::atomic<bool> refused{false};
        for (const Part &part : parts) {
            const i64 pieces = (part.rows + part.piece - 1) / part.piece;  // which threads do not share
            const int count = threads_for(std::min(part.work / grain, pieces), threads);
            if (count == 1) {
                if (part.run(0, part.rows, 0)) refused = true;
                continue;
            }
            const i64 step = part.rows < 4 * count * together ? 1 : together;
            const i64 length = ((part.rows + count - 1) / count + step - 1) / step * step;
            in_pieces(count, 1, count, [&](i64 begin, i64 end) {
                for (i64 i = begin; i < end; ++i)
                    if (part.run(std::min(i * length, part.rows), std::min((i + 1) * length, part.rows), memory_of(i)))
                        refused = true;
            });
        }
        return refused;
    }

    // How far the memory for piece i of all rows lies from what was given: the first piece's is that itself, the others
    // have memory of the thread that they run on, which begins at a cache line as well.
    i64 memory_of(i64 i) const {
        if (i == 0) return 0;
        thread_local std::vector<char> own;
        if (own.size() < size + line) own = std::vector<char>(size + line);
        return i64((reinterpret_cast<u64>(own.data()) + line - 1) / line * line - reinterpret_cast<u64>(first));
    }

    static constexpr u64 line = 64;
    nb::object memory;
    char *first;
    u64 size;
    i64 work = 0;
    std::vector<Part> parts;
};

}  // namespace

void bind_pipeline(Module &m) {
    Class<PipelineCall>(m, "PipelineCall", "Prepared calls that go through pieces of rows together.")
        .def(nb::init<nb::object>(), nb::arg("memory"))
        .def("part", &PipelineCall::part, nb::arg("rows"), nb::arg("piece"))
        .def("step", &PipelineCall::step, nb::arg("call"), nb::arg("operands"), nb::arg("out"), nb::arg("rows"),
             nb::arg("folds"))
        .def("sum", &PipelineCall::sum, nb::arg("call"), nb::arg("x"), nb::arg("out"), nb::arg("rows"),
             nb::arg("folds"))
        .def("maximum", &PipelineCall::maximum, nb::arg("call"), nb::arg("x"), nb::arg("out"), nb::arg("rows"))
        .def("__call__", &PipelineCall::run, nb::arg("key").none(), nb::arg("threads"));
}

}  // namespace lowprec
