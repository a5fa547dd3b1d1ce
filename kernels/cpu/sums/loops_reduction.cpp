// Sums over an axis as chains of groups: lanes are neighbouring sums, each adds its own terms in order.
#include "accumulate/finish.h"
#include "accumulate/steps_fast.h"
#include "sums/reduce_words.h"
#include "sums/sum_jobs.h"
#include "sums/terms.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 most_vectors = reduce_columns / lanes32, room = reduce_columns + lanes32;

struct Reduction {
    explicit Reduction(const ReduceJob &j)
        : job(j),
          step(j.step),
          final(j.final),
          down(turned_destination(j.out)),
          keep(j.out),
          keep_down(down),
          stages{parts_of(j.k), j.run, j.stages},
          by_rows(j.n == 1 && !j.order),
          each_half(j.group == 1 && path_of(j.step) == Path::half_nearest) {}

    // Units [begin, end) of all vertices' units.
    void run(i64 begin, i64 end) {
        const i64 each = reduce_units(job), chunks = each / job.m;
        for (i64 unit = begin; unit < end; ++unit) {
            const i64 here = unit % each;
            if (unit == begin || here == 0) enter(unit / each);
            if (by_rows)
                rows(here * reduce_rows);
            else
                columns(here / chunks, here % chunks * reduce_columns);
        }
    }

  private:
    static Destination turned_destination(Destination out) {
        out.column = out.row;
        return out;
    }
    i64 parts_of(i64 k) const { return k ? (k + job.part - 1) / job.part : 0; }

    void enter(i64 vertex) {
        i64 index[max_axes];
        unravel(vertex, job.shape, job.axes, index);
        x = job.x.data;
        out = job.out.data;
        for (int axis = 0; axis < job.axes; ++axis) {
            x += index[axis] * job.x.stride[axis];
            out += index[axis] * job.out.stride[axis];
        }
        place.key = job.key;
        place.head = u32(job.batch.at(index, job.axes)) & 0xffffffu;
        row0 = u32(job.row.at(index, job.axes));
        column0 = u32(job.column.at(index, job.axes));
        group0 = u32(job.first_group.at(index, job.axes));
    }

    // Up to reduce_rows sums of a single column; lanes are rows.
    void rows(i64 row) {
        const i64 count = job.m - row < reduce_rows ? job.m - row : reduce_rows;
        place.row = row0 + u32(row);
        place.column = column0;
        const float *total = sum_lines(x + row * job.x_row, job.x_row, nullptr, job.k, count, 0);
        keep_down.row(total, out + row * job.out.row, count);
    }

    // Up to reduce_columns sums of a row, `first` lanes behind the vector that the row's first column lies in.
    void columns(i64 row, i64 first) {
        const i64 skip = job.random ? column0 % lanes32 : 0, all = skip + job.n;
        const i64 end = first + reduce_columns < all ? first + reduce_columns : all;
        const i64 *order = job.order ? job.order + job.starts[row] : nullptr;
        const i64 k = job.order ? job.starts[row + 1] - job.starts[row] : job.k;
        const i64 width = direct(job.x_column) ? reduce_columns : term_lanes;
        for (i64 at = first; at < end; at += width) {
            const i64 stop = at + width < end ? at + width : end;
            const i64 lead = at == 0 ? skip : 0, column = at + lead - skip, count = stop - at - lead;
            place.row = row0 + u32(row);
            place.column = column0 - u32(skip) + u32(at);
            const char *from = x + row * job.x_row + column * job.x_column;
            const float *total = sum_lines(from, job.x_column, order, k, count, lead);
            keep.row(total + lead, out + row * job.out.row + column * job.out.column, count);
        }
    }

    bool direct(long lane) const {
        return job.x.element != Element::table8 && lane == (job.x.element == Element::real32 ? 4 : 2);
    }

    // `count` sums of k terms each behind `lead` unused lanes, by the lines that suit the strides.
    const float *sum_lines(const char *from, long lane, const i64 *order, i64 k, i64 count, i64 lead) {
        const long stride = job.x_k;
        if (direct(lane)) {
            if (job.x.element == Element::real32)
                return total(DirectLines<Element::real32>{from, stride, order, count}, k, count, lead);
            if (job.x.element == Element::half)
                return total(DirectLines<Element::half>{from, stride, order, count}, k, count, lead);
            return total(DirectLines<Element::bfloat>{from, stride, order, count}, k, count, lead);
        }
        if (order || __builtin_labs(stride) >= __builtin_labs(lane))
            return total(DecodedLines{job.x, from, stride, lane, order, count, line}, k, count, lead);
        if (count == 1) return total(SingleLine{job.x, from, stride, k, line}, k, count, lead);
        return total(TurnedLines{job.x, from, stride, lane, count, k, turned}, k, count, lead);
    }

    template <class Lines>
    const float *total(const Lines &lines, i64 k, i64 count, i64 lead) {
        const i64 vectors = (lead + count + lanes32 - 1) / lanes32, parts = parts_of(k);
        float *sums = part;
        if (parts <= 1 && stages.count == 1) {
            chain(0, k, vectors, lead, lines);
        } else {
            const auto between = [&](float *at, u32 index) {
                if (step.active) round(at, vectors, step, tag_stage, index);
            };
            for (i64 p = 0; p < parts; ++p) {
                chain(p * job.part, (p + 1) * job.part < k ? (p + 1) * job.part : k, vectors, lead, lines);
                take_part(part, staged[0], room, p, vectors * lanes32, stages, between);
            }
            sums = staged[stages.count - 1];
            if (parts == 0) chain(0, 0, vectors, lead, lines), sums = part;
        }
        if (final.active) round(sums, vectors, final, tag_output, 0);
        return sums;
    }

    // Sums terms [k, end) into `part`, from +0, rounded after every group.
    template <class Lines>
    void chain(i64 k, i64 end, i64 vectors, i64 lead, const Lines &lines) {
        for (i64 j = 0; j < vectors; ++j) store(part + j * lanes32, f32v{});
        if (!step.active) return lines.add(part + lead, k, end);
#if defined(__F16C__)
        if (each_half) return lines.template add<HalfNearest<false>>(part + lead, k, end);
#endif
        const bool random = step.mode == stochastic;
        const u32 shared = step.whole_words() ? 1 : 3;  // numbers of groups that differ here share counters
        bool fresh = true;
        for (u32 g = group0 + u32(k / job.group); k < end; ++g) {
            const i64 stop = job.group < end - k ? k + job.group : end;
            lines.add(part + lead, k, stop);
            k = stop;
            if (random && (fresh || (g & shared) == 0)) draw<7>(tag_step, step, g, vectors);
            fresh = false;
            apply(part, vectors, step, g);
        }
    }

    // Sums rounded as number `number` under a tag.
    void round(float *sums, i64 vectors, const Rounders &k, int tag, u32 number) {
        if (k.mode == stochastic) draw<10>(tag, k, number, vectors);
        apply(sums, vectors, k, number);
    }
    template <int rounds>
    void draw(int tag, const Rounders &k, u32 number, i64 vectors) {
        const bool wide = k.whole_words();
        WordPlace here = place;
        here.head |= u32(tag + (wide ? 1 : 0)) << 24;
        words.draw<rounds>(here, wide ? (number >> 1) << 3 : (number >> 2) << 3, vectors, by_rows);
    }
    void apply(float *sums, i64 vectors, const Rounders &k, u32 number) {
        const bool wide = k.whole_words();
        k.apply(sums, words.word[wide ? number & 1 : (number >> 1) & 1], wide ? 0 : int(number & 1) * 16, vectors, k);
    }

    const ReduceJob &job;
    const Rounders step, final;
    const Destination down;  // where lanes are rows
    const Store keep, keep_down;
    const Stages stages;
    const bool by_rows, each_half;  // lanes are rows; every sum is rounded to float16, in registers
    WordPlace place = {};
    u32 row0 = 0, column0 = 0, group0 = 0;
    const char *x = nullptr;
    char *out = nullptr;
    alignas(64) float part[room], staged[3][room], line[room], turned[term_window][term_lanes];
    ReduceWords<most_vectors> words;
};

}  // namespace

void reduce(const ReduceJob &job, i64 begin, i64 end) { Reduction(job).run(begin, end); }

}  // namespace LP_ISA
}  // namespace lowprec
