// Sums of parts, and maxima over an axis.
#include "decode_run.h"
#include "finish.h"
#include "vertices.h"

namespace lowprec {
inline namespace LP_ISA {

extern const ProductTable product_table;
void product(const ProductJob &job, const Region &region);
void reduce(const ReduceJob &job, i64 begin, i64 end);

namespace {

constexpr i64 chunk_columns = 4 * lanes32;  // columns at a time

// Rows [begin, end) of all vertices' rows.
void sum(const SumJob &job, i64 begin, i64 end) {
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
        Place place = {job.key, u32(job.batch.at(index, job.axes)) & 0xffffffu, u32(job.row.at(index, job.axes) + row),
                       0};
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

// Floats in an order that integers share: -0 below +0.
LP_INLINE i32v ordered(f32v x) {
    const i32v bits = bit_cast<i32v>(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

struct Largest {
    i32v top = i32v{} + i32(0x80000000u);
    u32v nan = {};
    void take(f32v x) {
        const i32v value = ordered(x);
        top = value > top ? value : top;
        nan |= x == x ? u32v{} : u32v{} + 1;
    }
    f32v value() const {
        const i32v bits = top ^ ((top >> 31) & 0x7fffffff);
        return bit_cast<f32v>(nan != 0 ? u32v{} + 0x7fc00000u : (u32v)bits);
    }
};

void largest_of_columns(const MaximumJob &job, const Store &keep, i64 row) {
    constexpr i64 wide = 512;  // columns at a time: lines of the array are read in long runs
    for (i64 column = 0; column < job.n; column += wide) {
        const i64 count = job.n - column < wide ? job.n - column : wide;
        const char *from = job.x.data + row * job.x_row + column * job.x_column;
        alignas(64) float line[wide + lanes32] = {};
        Largest largest[wide / lanes32];
        for (i64 k = 0; k < job.k; ++k) {
            decode_run(job.x.element, job.x.table, from + k * job.x_k, job.x_column, line, count);
            for (i64 j = 0; j < count; j += lanes32) largest[j / lanes32].take(load<f32v>(line + j));
        }
        for (i64 j = 0; j < count; j += lanes32) store(line + j, largest[j / lanes32].value());
        keep.row(line, job.out.data + row * job.out.row + column * job.out.column, count);
    }
}

void largest_of_row(const MaximumJob &job, const Store &keep, i64 row) {
    constexpr i64 window = 256;
    alignas(64) float line[window];
    Largest largest;
    for (i64 k = 0; k < job.k; k += window) {
        const i64 count = job.k - k < window ? job.k - k : window;
        decode_run(job.x.element, job.x.table, job.x.data + row * job.x_row + k * job.x_k, job.x_k, line, count);
        for (i64 i = count; i % lanes32; ++i) line[i] = line[0];
        for (i64 i = 0; i < count; i += lanes32) largest.take(load<f32v>(line + i));
    }
    alignas(64) float lanes[lanes32] = {};
    store(lanes, largest.value());
    Largest one;
    for (int lane = 0; lane < lanes32; ++lane) one.take(splat_real(lanes[lane]));
    store(lanes, one.value());
    keep.row(lanes, job.out.data + row * job.out.row, 1);
}

void maximum(const MaximumJob &job, i64 begin, i64 end) {
    const Store keep(job.out);
    for (i64 row = begin; row < end; ++row)
        job.n == 1 ? largest_of_row(job, keep, row) : largest_of_columns(job, keep, row);
}

}  // namespace

const ProductTable product_table = {product, sum, reduce, maximum};

}  // namespace LP_ISA
}  // namespace lowprec
