// Sums of parts, and maxima over an axis.
#include "accumulate/finish.h"
#include "operands/decode_run.h"
#include "sums/sum_jobs.h"
#include "sums/terms.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 chunk_columns = 4 * lanes32;  // columns at a time

}  // namespace

// Rows [begin, end) of all vertices' rows.
void sum_parts(const SumJob &job, i64 begin, i64 end) {
    const Rounders step(job.step);
    const Store keep(job.out);
    for (i64 unit = begin; unit < end; ++unit) {
        i64 index[max_axes];
        const i64 row = unit % job.m;
        unravel(unit / job.m, job.shape, job.axes, index);
        const char *from = job.parts.data + row * job.row_stride;
        char *to = job.out.data + row * job.out.row;
        for (int axis = 0; axis < job.axes; ++axis) {
            from += index[axis] * job.parts.stride[axis];
            to += index[axis] * job.out.stride[axis];
        }
        const u32 column0 = u32(job.column.at(index, job.axes));
        WordPlace place = {job.key, u32(job.batch.at(index, job.axes)) & 0xffffffu,
                           u32(job.row.at(index, job.axes) + row), 0};
        const i64 skip = column0 % lanes32;
        for (i64 first = 0; first < skip + job.n; first += chunk_columns) {
            const i64 here = skip + job.n - first < chunk_columns ? skip + job.n - first : chunk_columns;
            const i64 lead = first == 0 ? skip : 0, column = first + lead - skip, count = here - lead;
            const i64 vectors = (here + lanes32 - 1) / lanes32;
            alignas(64) float line[chunk_columns] = {}, total[chunk_columns + lanes32] = {};
            for (i64 p = 0; p < job.parts_count; ++p) {
                decode_run(job.parts.element, job.parts.table, from + p * job.part + column * job.column_stride,
                           job.column_stride, line + lead, count);
                add_rows(total, line, vectors * lanes32, p == 0);
            }
            place.column = column0 - u32(skip) + u32(first);
            if (step.active) round_rows(total, 1, vectors, step, place, job.tag, u32(job.index.at(index, job.axes)));
            keep.row(total + lead, to + column * job.out.column, count);
        }
    }
}

namespace {

// Floats in an order that integers share: -0 below +0, NaN on top.
constexpr i32 nothing = i32(0x80000000u);
LP_INLINE i32v ranked(f32v x) {
    const i32v bits = bit_cast<i32v>(x);
    return x == x ? bits ^ ((bits >> 31) & 0x7fffffff) : i32v{} + 0x7fffffff;
}
LP_INLINE f32v of_rank(i32v top) {
    const i32v bits = top ^ ((top >> 31) & 0x7fffffff);
    return bit_cast<f32v>(top > 0x7f800000 ? i32v{} + 0x7fc00000 : bits);
}
LP_INLINE void take(i32v &top, f32v x) {
    const i32v rank = ranked(x);
    top = rank > top ? rank : top;
}

// Lines [k, k + lines) of neighbouring elements into the largest of each column.
template <int lines, class Lines>
LP_INLINE void take_lines(const Lines &from, i64 k, i32v *top) {
    const char *at[lines];
    for (int l = 0; l < lines; ++l) at[l] = from.line(k + l);
    i64 i = 0;
    for (; i + lanes32 <= from.count; i += lanes32)
        for (int l = 0; l < lines; ++l) take(top[i / lanes32], Lines::values(at[l] + i * Lines::item));
    if (i == from.count) return;
    for (int l = 0; l < lines; ++l) take(top[i / lanes32], Lines::some_values(at[l] + i * Lines::item, from.count - i));
}

template <class Lines>
void take_all(const Lines &from, i64 terms, i32v *top) {
    i64 k = 0;
    for (; k + 4 <= terms; k += 4) take_lines<4>(from, k, top);
    for (; k < terms; ++k) take_lines<1>(from, k, top);
}

void largest_of_columns(const MaximumJob &job, const Store &keep, i64 row) {
    constexpr i64 wide = 512;  // columns at a time: lines of the array are read in long runs
    const bool real = job.x.element == Element::real32, half = job.x.element == Element::half;
    const bool direct = job.x.element != Element::table8 && job.x_column == (real ? 4 : 2);
    for (i64 column = 0; column < job.n; column += wide) {
        const i64 count = job.n - column < wide ? job.n - column : wide;
        const char *from = job.x.data + row * job.x_row + column * job.x_column;
        alignas(64) float line[wide + lanes32] = {};
        i32v top[wide / lanes32];
        for (i32v &t : top) t = i32v{} + nothing;
        if (direct && real) {
            take_all(DirectLines<Element::real32>{from, job.x_k, nullptr, count}, job.k, top);
        } else if (direct && half) {
            take_all(DirectLines<Element::half>{from, job.x_k, nullptr, count}, job.k, top);
        } else if (direct) {
            take_all(DirectLines<Element::bfloat>{from, job.x_k, nullptr, count}, job.k, top);
        } else {
            for (i64 k = 0; k < job.k; ++k) {
                decode_run(job.x.element, job.x.table, from + k * job.x_k, job.x_column, line, count);
                for (i64 j = 0; j < count; j += lanes32) take(top[j / lanes32], load<f32v>(line + j));
            }
        }
        for (i64 j = 0; j < count; j += lanes32) store(line + j, of_rank(top[j / lanes32]));
        keep.row(line, job.out.data + row * job.out.row + column * job.out.column, count);
    }
}

// The largest ranks of a run of neighbouring elements, at least a vector of them: of every lanes32-th one in each lane.
template <class Lines>
LP_INLINE i32v top_of_run(const char *at, i64 count) {
    constexpr int chains = 4;  // side by side: a comparison waits for the one before it
    i32v top[chains];
    for (i32v &t : top) t = i32v{} + nothing;
    i64 i = 0;
    for (; i + chains * lanes32 <= count; i += chains * lanes32)
        for (int c = 0; c < chains; ++c) take(top[c], Lines::values(at + (i + c * lanes32) * Lines::item));
    for (; i + lanes32 <= count; i += lanes32) take(top[0], Lines::values(at + i * Lines::item));
    if (i < count) take(top[1], Lines::values(at + (count - lanes32) * Lines::item));  // with some from before
    for (const i32v &t : top) top[0] = t > top[0] ? t : top[0];
    return top[0];
}

// The same of a row of a single column.
i32v top_of_row(const MaximumJob &job, const char *at) {
    if (job.x.element == Element::real32 && job.x_k == 4) return top_of_run<DirectLines<Element::real32>>(at, job.k);
    if (job.x.element == Element::half && job.x_k == 2) return top_of_run<DirectLines<Element::half>>(at, job.k);
    if (job.x.element == Element::bfloat && job.x_k == 2) return top_of_run<DirectLines<Element::bfloat>>(at, job.k);
    constexpr i64 window = 256;
    alignas(64) float line[window];
    i32v top = i32v{} + nothing;
    const i64 count = job.k < window ? job.k : window;
    for (i64 k = 0; k < job.k; k += window) {
        const i64 first = k + count < job.k ? k : job.k - count;  // the last window is as long as the others
        decode_run(job.x.element, job.x.table, at + first * job.x_k, job.x_k, line, count);
        const i32v here = top_of_run<DirectLines<Element::real32>>(reinterpret_cast<const char *>(line), count);
        top = here > top ? here : top;
    }
    return top;
}

// Up to lanes32 rows of a single column, of at least as many terms: a vector of each row, which are turned.
void largest_of_long_rows(const MaximumJob &job, const Store &keep, i64 row, i64 count) {
    f32v tops[lanes32] = {};
    for (i64 r = 0; r < count; ++r) tops[r] = bit_cast<f32v>(top_of_row(job, job.x.data + (row + r) * job.x_row));
    turn<1>(tops);
    i32v top = bit_cast<i32v>(tops[0]);
    for (const f32v &t : tops) top = bit_cast<i32v>(t) > top ? bit_cast<i32v>(t) : top;
    alignas(64) float lanes[lanes32];
    store(lanes, of_rank(top));
    keep.row(lanes, job.out.data + row * job.out.row, count);
}

// Short rows of a single column: lanes are rows.
void largest_of_short_rows(const MaximumJob &job, const Store &keep, i64 row, i64 count) {
    alignas(64) float turned[term_window][term_lanes];
    const char *from = job.x.data + row * job.x_row;
    i32v top[term_lanes / lanes32];
    for (i32v &t : top) t = i32v{} + nothing;
    for (i64 k = 0; k < job.k; k += term_window) {
        const i64 terms = job.k - k < term_window ? job.k - k : term_window;
        turn_terms(job.x, from + k * job.x_k, job.x_k, job.x_row, count, terms, turned);
        for (i64 t = 0; t < terms; ++t)
            for (i64 j = 0; j < count; j += lanes32) take(top[j / lanes32], load<f32v>(&turned[t][j]));
    }
    for (i64 j = 0; j < count; j += lanes32) store(&turned[0][j], of_rank(top[j / lanes32]));
    keep.row(turned[0], job.out.data + row * job.out.row, count);
}

}  // namespace

void maximum(const MaximumJob &job, i64 begin, i64 end) {
    Destination down = job.out;
    down.column = down.row;  // where lanes are rows
    const Store keep(job.out), keep_down(down);
    if (job.n > 1) {
        for (i64 row = begin; row < end; ++row) largest_of_columns(job, keep, row);
        return;
    }
    const bool long_rows = job.k >= lanes32;
    const auto rows = long_rows ? largest_of_long_rows : largest_of_short_rows;
    const i64 step = long_rows ? lanes32 : term_lanes;
    for (i64 row = begin; row < end; row += step) rows(job, keep_down, row, end - row < step ? end - row : step);
}

}  // namespace LP_ISA
}  // namespace lowprec
