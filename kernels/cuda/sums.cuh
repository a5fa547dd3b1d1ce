// Float32 sums on the GPU as data, and the random bits of their roundings.
#ifndef LOWPREC_SUMS_CUH
#define LOWPREC_SUMS_CUH

#include "lowprec/random.h"
#include "storage.cuh"

namespace lowprec {

constexpr int most_vertices = 8;  // axes in front of (terms, rows, columns)

// A number of each vertex: `base`, or of an array over the vertex axes (steps in elements).
struct Numbering {
    i64 base;
    const i64 *at;
    i64 step[most_vertices];
};

// Sums of x (v.., m, k, n) over k, or of parts (k, v.., m, n). Steps are in bytes.
struct SumJob {
    Rounding step, final;  // after a group and between stages; of the result
    Format source;
    const void *x;
    const i64 *order, *starts;  // scatter: rows of x in the order of their indices, and where each index begins
    i64 shape[most_vertices], x_step[most_vertices], out_step[most_vertices];
    i64 m, k, n, x_row, x_k, x_column, out_row, out_column;
    i64 group, part, parts, run;  // see Accumulation.cut
    i64 vertices;
    i64 through;  // where it is not 0, rows are numbered through the vertices, so many in a batch
    u64 key;
    Numbering row, column, first_group, batch, number;  // number: of the last rounding
    int axes, stages, tag;
};

inline namespace LP_ISA {

LP_INLINE i64 number_at(const Numbering &numbers, const i64 (&index)[most_vertices], int axes) {
    if (!numbers.at) return numbers.base;
    const i64 *at = numbers.at;
    for (int axis = 0; axis < axes; ++axis) at += index[axis] * numbers.step[axis];
    return *at;
}

// One sum of a job: element (row i, column j) of a vertex.
struct Element {
    i64 index[most_vertices], i, j;
    u32 batch, row, column;

    // Number `flat` of all, the columns fastest.
    LP_INLINE Element(const SumJob &job, i64 flat) {
        j = flat % job.n;
        flat /= job.n;
        const i64 line = flat;
        i = flat % job.m;
        flat /= job.m;
        for (int axis = job.axes - 1; axis >= 0; --axis) {
            index[axis] = flat % job.shape[axis];
            flat /= job.shape[axis];
        }
        if (job.through) {
            batch = u32(job.batch.base + line / job.through) & 0xffffffu;
            row = u32(job.row.base + line % job.through);
        } else {
            batch = u32(number_at(job.batch, index, job.axes)) & 0xffffffu;
            row = u32(number_at(job.row, index, job.axes) + i);
        }
        column = u32(number_at(job.column, index, job.axes) + j);
    }
    LP_INLINE i64 offset(const i64 (&step)[most_vertices], i64 row_step, i64 column_step, int axes) const {
        i64 at = i * row_step + j * column_step;
        for (int axis = 0; axis < axes; ++axis) at += index[axis] * step[axis];
        return at;
    }
};

// The random bits of an element's roundings (lowprec.backends.reference.chains.sum_bits). Neighbouring numbers share
// the words of a counter, which are kept.
template <class E, int rounds>
struct SumDraws {
    u64 key;
    u32 head, row, column;
    int per_block;  // numbers that share a counter
    u32 held = 0;
    bool fresh = true;
    Words words;

    LP_INLINE SumDraws(const Element &e, int tag, int bits, u64 k)
        : key(k), row(e.row), column(e.column), per_block(bits <= 16 ? 4 : 2) {
        head = u32(tag + (bits > 16)) << 24 | e.batch;
    }
    LP_INLINE E operator()(u32 number) {
        const u32 high = number / per_block, position = 16 * (number % per_block) + (column & 15);
        if (fresh || high != held)
            words = philox<rounds>(head, row, column >> 4, high << 3 | ((position >> 1) & 7), key);
        fresh = false;
        held = high;
        constexpr int lift = Carrier<E>::fraction - 16;
        if (per_block == 2) return E(pick(2 * ((position >> 4) & 1) + (position & 1)));
        const u32 word = pick(2 * ((position >> 5) & 1) + (position & 1));
        return E((position >> 4) & 1 ? word >> 16 : word & 0xffffu) << lift;
    }

  private:
    // Not by an index, which would send the words to memory.
    LP_INLINE u32 pick(u32 n) const {
        const u32 low = n & 1 ? words.word[1] : words.word[0], high = n & 1 ? words.word[3] : words.word[2];
        return n & 2 ? high : low;
    }
};

// A float32 sum on the grid of a format; `mode` -1: as it is.
template <class E, int mode>
struct SumRounder {
    Rounder<E> rounder;

    LP_INLINE explicit SumRounder(const Rounding &rounding) {
        if constexpr (mode >= 0) rounder = make_rounder<E>(rounding, true);
    }
    template <class Draws>
    LP_INLINE float operator()(float sum, Draws &draws, u32 number) const {
        if constexpr (mode < 0) {
            return sum;
        } else {
            typedef typename Lanes<E>::real R;
            E random = 0;
            if constexpr (mode == stochastic) random = draws(number);
            return narrow_sum(bit_cast<R>(round_bits<mode, true>(bit_cast<E>(R(sum)), random, rounder)));
        }
    }

  private:
    static LP_INLINE float narrow_sum(float x) { return x; }
    static LP_INLINE float narrow_sum(double x) { return narrow(x); }
};

// NaN wins, +0 is larger than -0.
LP_INLINE float larger_of(float a, float b) {
    if (a != a || b != b) return a != a ? a : b;
    if (a == b) return bit_cast<u32>(a) >> 31 ? b : a;
    return a > b ? a : b;
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
