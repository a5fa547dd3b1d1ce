// Steps of a pipeline: a prepared call bound to its arrays, of which a piece of rows is computed at a time.
#ifndef LOWPREC_PIPELINE_STEPS_H
#define LOWPREC_PIPELINE_STEPS_H

#include "isa/dispatch.h"
#include "python/derived_keys.h"
#include "python/elementwise_calls.h"
#include "python/reduce_calls.h"

namespace lowprec {

// Where an array lies: whole, or (`row` bytes to each of its rows) with its rows of a piece in the memory of a thread.
struct Place {
    const char *first;
    i64 row;

    // Where its first row would lie, for the piece that begins with row `begin`.
    const char *at(i64 begin, i64 thread) const {
        return row ? reinterpret_cast<const char *>(reinterpret_cast<u64>(first) + u64(thread - begin * row)) : first;
    }
};

class Step {
  public:
    virtual ~Step() = default;

    // Rows [begin, end), whose memory in pieces lies `thread` bytes from what was given; whether a NaN was refused.
    virtual bool run(i64 begin, i64 end, i64 thread) const = 0;

    void take_key(nanobind::handle key) {
        if (!random) return;
        u64 bits = key_bits(key, true);
        for (const u64 number : folds) bits = derive(bits, tag_fold_in, number);
        set_key(bits);
    }
    bool whole() const { return !inside; }

    i64 work;  // elements that it reads or makes

  protected:
    Step(i64 elements, bool draws, const std::vector<i64> &rows, const std::vector<u64> &numbers,
         nanobind::object holds)
        : work(elements),
          inside(std::any_of(rows.begin(), rows.end(), [](i64 row) { return row != 0; })),
          random(draws),
          folds(numbers),
          held(holds) {}
    virtual void set_key(u64 key) = 0;

  private:
    bool inside, random;     // something lies in pieces; random bits are drawn
    std::vector<u64> folds;  // numbers that are folded into the key one after the other
    nanobind::object held;   // what the pointers point into
};

class ElementwiseStep : public Step {
  public:
    // `all`: rows of the result; `rows`: bytes of a row of each operand and of the result, 0 where it is whole.
    ElementwiseStep(const ElementwiseCall &call, nanobind::tuple operands, nanobind::object out, i64 all,
                    const std::vector<i64> &rows, const std::vector<u64> &numbers, nanobind::object holds)
        : Step(0, call.keyed, rows, numbers, holds) {
        if (rows.size() != call.types.size() + 1) throw std::invalid_argument("no such step");
        const Broadcast shape = set_operands(job, call, operands, scalars);
        PyArrayObject *array = given_output(out, call.descr(), shape.axes, shape.shape);
        if (!PyArray_ISCARRAY(array) || shape.size() % all)
            throw std::invalid_argument("results must be C-contiguous arrays of whole rows");
        work = shape.size();
        own = work / all;
        job.out.offset = 0;
        job.out.to = PyArray_DATA(array);
        for (int i = 0; i < job.operands; ++i) operand[i] = {job.operand[i].data, rows[i]};
        result = {static_cast<const char *>(PyArray_DATA(array)), rows.back()};
    }

    bool run(i64 begin, i64 end, i64 thread) const override {
        const auto loop = table().elementwise->run;
        if (whole()) return loop(job, begin * own, end * own);
        ElementwiseJob here = job;
        for (int i = 0; i < job.operands; ++i) here.operand[i].data = operand[i].at(begin, thread);
        here.out.to = const_cast<char *>(result.at(begin, thread));
        return loop(here, begin * own, end * own);
    }

  private:
    void set_key(u64 key) override { job.out.key = key; }

    ElementwiseJob job;
    float scalars[3];
    Place operand[3], result;
    i64 own;  // elements of a row
};

inline void set_job(ReduceJob &job, const ReduceCall &call, nanobind::handle x, Broadcast &vertices) {
    set_terms(job, call, x, vertices);
    set_order(job, call);
    job.row = job.column = job.first_group = job.batch = {};
}

inline void set_job(MaximumJob &job, const MaximumCall &call, nanobind::handle x, Broadcast &) {
    set_terms(job, call, x);
}

inline void run_rows(ReduceJob &job, i64 first) {
    job.row.base = first;
    table().sums->reduce(job, 0, job.n ? reduce_units(job) : 0);
}

inline void run_rows(MaximumJob &job, i64) {
    if (job.n) table().sums->maximum(job, 0, job.m);
}

// The sums, or the largest, of the terms of x (m, k, n) in out (m, n); a row of the pipeline has so many of these.
template <class Call, class Job>
class RowsStep : public Step {
  public:
    RowsStep(const Call &call, nanobind::object x, nanobind::object out, i64 all, const std::vector<i64> &rows,
             const std::vector<u64> &numbers, nanobind::object holds)
        : Step(0, call.accumulator.random(), rows, numbers, holds) {
        Broadcast vertices;
        set_job(job, call, x, vertices);
        if (rows.size() != 2 || vertices.axes) throw std::invalid_argument("no such step");
        bool nan_met;
        target(call.accumulator, vertices, true, job.m, true, job.n, out, job.out, nan_met);
        if (job.m % all) throw std::invalid_argument("sums must be of whole rows");
        work = job.m * job.n * (job.k + 1);
        own = job.m / all;
        from = {job.x.data, rows[0]};
        to = {job.out.data, rows[1]};
    }

    bool run(i64 begin, i64 end, i64 thread) const override {
        Job here = job;
        bool nan_met = false;
        here.x.data = from.at(begin, thread) + begin * own * job.x_row;
        here.out.data = const_cast<char *>(to.at(begin, thread)) + begin * own * job.out.row;
        here.out.nan_met = job.out.nan_met ? &nan_met : nullptr;
        here.m = (end - begin) * own;
        run_rows(here, begin * own);
        return nan_met;
    }

  private:
    void set_key(u64 bits) override {
        if constexpr (std::is_same_v<Job, ReduceJob>) job.key = bits;
    }

    Job job;
    Place from, to;
    i64 own;  // rows of x in a row
};

}  // namespace lowprec
#endif
