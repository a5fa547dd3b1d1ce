// Float32 sums in their stated order: the chain of one part of one element per thread, and, in a launch behind it, the
// parts of an element summed in stages, rounded and stored. Also maxima, and rows added at indices.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/sums.py):
//     LP_FINISH    0: chains of x into float32 parts, 1: parts into results
//     LP_FROM      Codes<u8 u16> or Numbers<float>: of x, or of the parts
//     LP_READ      lane in which its codes are decoded
//     LP_MAXIMUM   1: the larger of two takes the place of their sum
//     LP_STEP      mode of the rounding after a group and between stages, -1 for none; in lanes LP_STEP_LANE
//     LP_LAST      mode of the last rounding, -1 for none; in lanes LP_LANE
//     LP_TO        Codes<u8 u16 u32 u64> or, without a last rounding, Numbers<float double>
#include "sums.cuh"

#ifndef LP_FINISH
#define LP_FINISH 0
#define LP_FROM Codes<u16>
#define LP_READ u32
#define LP_MAXIMUM 0
#define LP_STEP stochastic
#define LP_STEP_LANE u32
#define LP_LAST -1
#define LP_LANE u32
#define LP_TO Numbers<float>
#endif

namespace lowprec {
inline namespace LP_ISA {

LP_INLINE float read(const char *at, const Decoder<LP_READ> &source) {
    const LP_READ bits = LP_FROM::load(*reinterpret_cast<const typename LP_FROM::stored *>(at), source);
    return float(bit_cast<typename Lanes<LP_READ>::real>(bits));
}

LP_INLINE float combined(float a, float b) { return LP_MAXIMUM ? larger_of(a, b) : a + b; }

// Terms [k, end) of an element, rounded after every group; the part's first group has number g.
LP_INLINE float chain(const SumJob &job, const char *x, const i64 *order, i64 k, i64 end, u32 g, const Element &e) {
    const Decoder<LP_READ> source = make_decoder<LP_READ>(job.source);
    const SumRounder<LP_STEP_LANE, LP_STEP> round(job.step);
    SumDraws<LP_STEP_LANE, 7> draws(e, tag_step, job.step.random_bits, job.key);
    float sum = 0.0f;
    if (LP_MAXIMUM) sum = read(x + k * job.x_k, source);
    for (; k < end; ++g) {
        const i64 stop = job.group < end - k ? k + job.group : end;
        for (; k < stop; ++k) sum = combined(sum, read(x + (order ? order[k] : k) * job.x_k, source));
        sum = round(sum, draws, g);
    }
    return sum;
}

LP_INLINE void chains(const SumJob &job, float *parts) {
    const i64 sums = job.vertices * job.m * job.n, step = i64(gridDim.x) * blockDim.x;
    const bool scattered = job.order != nullptr;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < sums * job.parts; at += step) {
        const i64 part = at / sums;
        const Element e(job, at - part * sums);
        const char *x = static_cast<const char *>(job.x) + e.offset(job.x_step, job.x_row, job.x_column, job.axes);
        i64 begin = part * job.part, end = job.part < job.k - begin ? begin + job.part : job.k;
        if (scattered) {
            begin = job.starts[e.i];
            end = job.starts[e.i + 1];
        }
        const u32 first = u32(number_at(job.first_group, e.index, job.axes) + (scattered ? 0 : begin / job.group));
        parts[at] = chain(job, x, job.order, begin, end, first, e);
    }
}

// The parts of an element in up to three stages, ascending, each from its first member: all but the last sum runs of
// so many. `taken` counts the members of a stage, `first` numbers its results.
LP_INLINE float staged(const SumJob &job, const char *parts, const Element &e) {
    const Decoder<LP_READ> source = make_decoder<LP_READ>(job.source);
    const SumRounder<LP_STEP_LANE, LP_STEP> round(job.step);
    SumDraws<LP_STEP_LANE, 10> draws(e, tag_stage, job.step.random_bits, job.key);
    float total[3] = {};
    for (i64 p = 0; p < job.k; ++p) {
        float part = read(parts + p * job.x_k, source);
        i64 number = p, members = job.k, first = 0;
        for (int stage = 0; stage < job.stages; ++stage) {
            const bool last_stage = stage == job.stages - 1;
            const i64 run = last_stage ? members : job.run;
            total[stage] = number % run == 0 ? part : combined(total[stage], part);
            if (last_stage || (number % run != run - 1 && number != members - 1)) break;
            number /= run;
            part = total[stage] = round(total[stage], draws, u32(first + number));
            members = (members + run - 1) / run;
            first += members;
        }
    }
    return total[job.stages - 1];
}

// `bad` is given where the result's format has no NaN, and raised by one.
LP_INLINE void finish(const SumJob &job, void *out, u32 *bad) {
    typedef typename Lanes<LP_LANE>::real R;
    const Rounder<LP_LANE> rounder = make_rounder<LP_LANE>(job.final, false);
    const i64 sums = job.vertices * job.m * job.n, step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < sums; at += step) {
        const Element e(job, at);
        const char *parts = static_cast<const char *>(job.x);
        const float sum = staged(job, parts + e.offset(job.x_step, job.x_row, job.x_column, job.axes), e);
        if (bad && sum != sum) *bad = 1;
        auto *to = reinterpret_cast<typename LP_TO::stored *>(
            static_cast<char *>(out) + e.offset(job.out_step, job.out_row, job.out_column, job.axes));
        const LP_LANE bits = bit_cast<LP_LANE>(R(sum));
#if LP_LAST < 0
        *to = LP_TO::store<true>(sum == sum ? bits : Carrier<LP_LANE>::nan, rounder);
#else
        SumDraws<LP_LANE, 10> draws(e, job.tag, job.final.random_bits, job.key);
        LP_LANE random = 0;
        if (LP_LAST == stochastic) random = draws(u32(number_at(job.number, e.index, job.axes)));
        *to = typename LP_TO::stored(round_bits<LP_LAST, false>(bits, random, rounder));
#endif
    }
}

}  // namespace LP_ISA
}  // namespace lowprec

// `out`: the parts, float32, all elements of one after those of another; or the results.
extern "C" __global__ void __launch_bounds__(256) lowprec_sums(lowprec::SumJob job, void *out, unsigned int *bad) {
#if LP_FINISH
    lowprec::finish(job, out, bad);
#else
    lowprec::chains(job, static_cast<float *>(out));
#endif
}
