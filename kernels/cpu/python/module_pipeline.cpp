// Prepared calls one after another in one call, over pieces of rows that stay in the cache: a row of every result needs
// nothing of the others but the same row. What only these calls read has memory for the rows of one piece.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>

#include "isa/dispatch.h"
#include "python/derived_keys.h"
#include "python/elementwise_calls.h"
#include "python/module.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

constexpr i64 grain = 1 << 15;  // elements, of all results, that are worth a thread
constexpr i64 quick = 1 << 12;  // below this, giving up the interpreter's lock costs more than it gains
constexpr i64 together = 64;    // threads' first rows are multiples of this

// Where an array lies: whole, or (`row` bytes to each of its rows) with its rows of a piece in the memory of a thread.
struct Place {
    const char *first;
    i64 row;

    // Where its first row would lie, for the piece that begins with row `begin`.
    const char *at(i64 begin, i64 thread) const {
        return row ? reinterpret_cast<const char *>(reinterpret_cast<u64>(first) + u64(thread - begin * row)) : first;
    }
};

struct Step {
    ElementwiseJob job;
    float scalars[3];
    Place operand[3], result;
    i64 own;  // elements of a row
    bool random, inside;
    std::vector<u64> folds;  // numbers that are folded into the key one after the other
    nb::object call, operands, out;

    bool run(i64 begin, i64 end, i64 thread) const {
        const auto loop = table().elementwise->run;
        if (!inside) return loop(job, begin * own, end * own);
        ElementwiseJob here = job;
        for (int i = 0; i < job.operands; ++i) here.operand[i].data = operand[i].at(begin, thread);
        here.out.to = const_cast<char *>(result.at(begin, thread));
        return loop(here, begin * own, end * own);
    }
};

// Steps of one number of rows, of which each piece goes through all before the next.
struct Part {
    i64 rows, piece, work;
    std::vector<std::unique_ptr<Step>> steps;

    bool run(i64 begin, i64 end, i64 thread) const {
        bool refused = false;
        const i64 each = steps.size() == 1 && !steps[0]->inside ? end - begin : piece;
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

    void step(nb::object prepared, nb::tuple operands, nb::object out, const std::vector<i64> &rows,
              const std::vector<u64> &folds) {
        const ElementwiseCall &call = nb::cast<const ElementwiseCall &>(prepared);
        if (parts.empty() || rows.size() != call.types.size() + 1) throw std::invalid_argument("no such step");
        auto step = std::make_unique<Step>();
        const Broadcast shape = set_operands(step->job, call, operands, step->scalars);
        PyArrayObject *result = given_output(out, call.descr(), shape.axes, shape.shape);
        Part &part = parts.back();
        if (!PyArray_ISCARRAY(result) || shape.size() % part.rows)
            throw std::invalid_argument("results must be C-contiguous arrays of whole rows");
        step->own = shape.size() / part.rows;
        step->job.out.offset = 0;
        step->job.out.to = PyArray_DATA(result);
        for (int i = 0; i < step->job.operands; ++i) step->operand[i] = {step->job.operand[i].data, rows[i]};
        step->result = {static_cast<const char *>(PyArray_DATA(result)), rows.back()};
        step->inside = std::any_of(rows.begin(), rows.end(), [](i64 row) { return row != 0; });
        step->random = call.random();
        step->folds = folds;
        step->call = prepared, step->operands = operands, step->out = out;
        part.work += shape.size();
        work += shape.size();
        parts.back().steps.push_back(std::move(step));
    }

    void run(nb::handle key, int threads) {
        for (const Part &part : parts)
            for (const auto &step : part.steps)
                if (step->random) {
                    step->job.out.key = key_bits(key, true);
                    for (const u64 number : step->folds)
                        step->job.out.key = derive(step->job.out.key, tag_fold_in, number);
                }
        bool refused;
        if (work < quick) {
            refused = run_parts(1);
        } else {
            nb::gil_scoped_release release;
            refused = run_parts(threads);
        }
        if (refused) throw std::invalid_argument("a NaN was met and the format has none");
    }

  private:
    bool run_parts(int threads) {
        std::atomic<bool> refused{false};
        for (const Part &part : parts) {
            const i64 pieces = (part.rows + part.piece - 1) / part.piece;  // which threads do not share
            const int count = threads_for(std::min(part.work / grain, pieces), threads);
            if (count == 1) {
                if (part.run(0, part.rows, 0)) refused = true;
                continue;
            }
            const i64 length = ((part.rows + count - 1) / count + together - 1) / together * together;
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

void bind_pipeline(nb::module_ &m) {
    nb::class_<PipelineCall>(m, "PipelineCall", "Prepared calls that go through pieces of rows together.")
        .def(nb::init<nb::object>(), nb::arg("memory"))
        .def("part", &PipelineCall::part, nb::arg("rows"), nb::arg("piece"))
        .def("step", &PipelineCall::step, nb::arg("call"), nb::arg("operands"), nb::arg("out"), nb::arg("rows"),
             nb::arg("folds"))
        .def("__call__", &PipelineCall::run, nb::arg("key").none(), nb::arg("threads"));
}

}  // namespace lowprec
