// Sums over an axis as chains of groups, sums of parts, and maxima.
#include "decode_run.h"
#include "finish.h"

namespace lowprec {
inline namespace LP_ISA {

extern const ProductTable product_table;
void product(const ProductJob &job, const Region &region);

namespace {

constexpr i64 chunk = 4;  // vectors of columns at a time
constexpr i64 chunk_columns = chunk * lanes32;

// Splits a flat vertex number into its index.
void unravel(i64 vertex, const i64 *shape, int axes, i64 *index) {
    for (int axis = axes - 1; axis >= 0; --axis) {
        index[axis] = vertex % shape[axis];
        vertex /= shape[axis];
    }
}

// Random words of a chain for the groups that share counters with g; lanes are columns (or rows, at one column).
struct Words {
    u32v word[2][chunk];

    void columns(const Place &place, u32 c3, i64 vectors) {
        for (i64 j = 0; j < vectors; ++j) {
            Place here = place;
            here.column += u32(j) * lanes32;
            u32v one[2][1][1];
            Draws<7, 1, 1>(here).words(c3, one);
            word[0][j] = one[0][0][0];
            word[1][j] = one[1][0][0];
        }
    }
    void rows(const Place &place, u32 c3) {
        for (int lane = 0; lane < lanes32; ++lane) {
            const Words4 w = counter(place, c3, lane);
            word[0][0][lane] = w.word[place.column & 1];
            word[1][0][lane] = w.word[2 + (place.column & 1)];
        }
    }

  private:
    typedef lowprec::LP_ISA::Words Words4;
    static Words4 counter(const Place &place, u32 c3, int lane) {
        return philox<7>(place.head, place.row + u32(lane), place.column >> 4, c3 | ((place.column & 15) >> 1),
                         place.key);
    }
};

class Reduction {
  public:
    explicit Reduction(const ReduceJob &j)
        : job(j),
          step(j.step),
          final(j.final),
          keep(j.out),

          parts(j.k ? (j.k + j.part - 1) / j.part : 0),
          stages(parts, j.stages),
          random(step.active && step.mode == stochastic),
          whole(step.whole_words()) {}

    // Rows [begin, end) of all vertices' rows, one after the other.
    void run(i64 begin, i64 end) {
        while (begin < end) {
            const i64 vertex = begin / job.m, row = begin % job.m;
            const i64 count = job.m - row < end - begin ? job.m - row : end - begin;
            enter(vertex);
            if (job.n == 1)
                for (i64 r = 0; r < count; r += lanes32) rows(row + r, count - r < lanes32 ? count - r : lanes32);
            else
                for (i64 r = 0; r < count; ++r) columns(row + r);
            begin += count;
        }
    }

  private:
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
        place.head = (u32(tag_step + (whole ? 1 : 0)) << 24) | (u32(job.batch.at(index, job.axes)) & 0xffffffu);
        row0 = u32(job.row.at(index, job.axes));
        column0 = u32(job.column.at(index, job.axes));
        group0 = u32(job.first_group.at(index, job.axes));
    }

    // Sums terms [k, stop) for `vectors` vectors; values(k, line) fills a line of floats.
    template <class Fill, class Draw>
    void chain(i64 begin, i64 end, i64 vectors, float *sums, const Fill &fill, const Draw &draw) {
        for (i64 j = 0; j < vectors; ++j) store(sums + j * lanes32, f32v{});
        bool fresh = true;
        u32 g = group0 + u32(begin / job.group);
        for (i64 k = begin; k < end; ++g) {
            const i64 stop = step.active && job.group < end - k ? k + job.group : end;
            for (; k < stop; ++k) {
                const float *line = fill(k);
                for (i64 j = 0; j < vectors; ++j)
                    store(sums + j * lanes32, load<f32v>(sums + j * lanes32) + load<f32v>(line + j * lanes32));
            }
            if (!step.active) continue;
            if (random && (fresh || (g & (whole ? 1 : 3)) == 0)) draw(whole ? (g >> 1) << 3 : (g >> 2) << 3);
            fresh = false;
            const int pair_number = whole ? g & 1 : (g >> 1) & 1, shift = whole ? 0 : int(g & 1) * 16;
            step.apply(sums, words.word[pair_number], shift, vectors, step);
        }
    }

    // One row; lanes are columns.
    void columns(i64 row) {
        const i64 skip = column0 % lanes32, all = skip + job.n;
        for (i64 first = 0; first < all; first += chunk_columns) {
            const i64 here = all - first < chunk_columns ? all - first : chunk_columns;
            const i64 lead = first == 0 ? skip : 0, column = first + lead - skip, count = here - lead;
            const i64 vectors = (here + lanes32 - 1) / lanes32;
            const char *from = x + row * job.x_row + column * job.x_column;
            alignas(64) float line[chunk_columns] = {}, part[chunk_columns + lanes32], sums[3][tile_floats + lanes32];
            place.row = row0 + u32(row);
            place.column = column0 - u32(skip) + u32(first);
            const auto fill = [&](i64 k) {
                decode_run(job.x.element, job.x.table, from + k * job.x_k, job.x_column, line + lead, count);
                return line;
            };
            const auto draw = [&](u32 c3) { words.columns(place, c3, vectors); };
            float *total = part;
            if (parts == 0) __builtin_memset(part, 0, sizeof part);
            for (i64 p = 0; p < parts; ++p) {
                chain(p * job.part, end_of(p), vectors, part, fill, draw);
                if (parts == 1 && stages.count == 1) break;
                take_part(part, sums, p, 1, vectors, stages, step, place);
                total = sums[stages.count - 1];
            }
            finish_row(total, vectors);
            keep.row(total + lead, out + row * job.out.row + column * job.out.column, count);
        }
    }

    // Up to lanes32 rows of a single column; lanes are rows until the parts are summed.
    void rows(i64 row, i64 count) {
        const u32 lane = column0 % lanes32;
        alignas(64) float part[lanes32], sums[lanes32][3][tile_floats + lanes32], one[2 * lanes32] = {};
        constexpr i64 window = 64;
        alignas(64) float turned[window][lanes32] = {}, line[window];
        i64 first = 0, last = 0;  // terms held in `turned`
        place.row = row0 + u32(row);
        place.column = column0;
        const auto fill = [&](i64 k) {
            if (k < first || k >= last) {
                first = k;
                last = job.k - k < window ? job.k : k + window;
                for (i64 r = 0; r < count; ++r) {
                    decode_run(job.x.element, job.x.table, x + (row + r) * job.x_row + k * job.x_k, job.x_k, line,
                               last - k);
                    for (i64 i = 0; i < last - k; ++i) turned[i][r] = line[i];
                }
            }
            return turned[k - first];
        };
        const auto draw = [&](u32 c3) { words.rows(place, c3); };
        __builtin_memset(part, 0, sizeof part);
        const bool single = parts <= 1 && stages.count == 1;
        const Place corner = place;
        for (i64 p = 0; p < parts; ++p) {
            place = corner;
            chain(p * job.part, end_of(p), 1, part, fill, draw);
            for (i64 r = 0; !single && r < count; ++r) {
                one[lane] = part[r];
                at_row(corner, r, lane);
                take_part(one, sums[r], p, 1, 1, stages, step, place);
            }
        }
        for (i64 r = 0; r < count; ++r) {
            float *total = single || parts == 0 ? one : sums[r][stages.count - 1];
            if (total == one) one[lane] = part[r];
            at_row(corner, r, lane);
            finish_row(total, 1);
            keep.row(total + lane, out + (row + r) * job.out.row, 1);
        }
        place = corner;
    }

    void at_row(const Place &corner, i64 r, u32 lane) {
        place.row = corner.row + u32(r);
        place.column = corner.column - lane;
    }
    void finish_row(float *total, i64 vectors) {
        if (final.active) round_rows(total, 1, vectors, final, place, tag_output, 0);
    }
    i64 end_of(i64 p) const { return (p + 1) * job.part < job.k ? (p + 1) * job.part : job.k; }

    const ReduceJob &job;
    const Rounders step, final;
    const Store keep;
    const i64 parts;
    const Stages stages;
    const bool random, whole;
    Words words;
    Place place = {};
    u32 row0 = 0, column0 = 0, group0 = 0;
    const char *x = nullptr;
    char *out = nullptr;
};

void reduce(const ReduceJob &job, i64 begin, i64 end) { Reduction(job).run(begin, end); }

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
    for (i64 column = 0; column < job.n; column += lanes32) {
        const i64 count = job.n - column < lanes32 ? job.n - column : lanes32;
        const char *from = job.x.data + row * job.x_row + column * job.x_column;
        alignas(64) float line[lanes32] = {};
        Largest largest;
        for (i64 k = 0; k < job.k; ++k) {
            decode_run(job.x.element, job.x.table, from + k * job.x_k, job.x_column, line, count);
            largest.take(load<f32v>(line));
        }
        store(line, largest.value());
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
