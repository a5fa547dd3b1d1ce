// Products of matrices: every element is a chain of fused multiply-adds, rounded after every group. A block of threads
// makes a square of sums of one part, from panels of both operands in shared memory (panels.cuh). The parts are
// float32; the launch behind this one (sums.cu) sums them in stages, rounds and stores. Convolutions are products over
// windows.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/products.py):
//     LP_A, LP_B            Codes<u8 u16> or Numbers<float>
//     LP_A_READ, LP_B_READ  lanes in which their codes are decoded
//     LP_STEP               mode of the rounding after a group, -1 for none; in lanes LP_STEP_LANE
//     LP_SUMS               sums of a thread along either axis
//     LP_WINDOWS            1: the rows of a, or their terms, are windows of images (panels.cuh); 0: any two strides
#include "lowprec/round_grid.h"
#include "sums.cuh"

#ifndef LP_A
#define LP_A Codes<u16>
#define LP_A_READ u32
#define LP_B Codes<u16>
#define LP_B_READ u32
#define LP_STEP stochastic
#define LP_STEP_LANE u32
#define LP_SUMS 4
#define LP_WINDOWS 0
#endif

#include "panels.cuh"

namespace lowprec {

// `sums` has a as its x; the rest is of b, and of what the chains start from (null: +0).
struct ProductJob {
    SumJob sums;
    Format b_format;
    const void *b;
    const float *start;
    i64 b_step[most_vertices], start_step[most_vertices];
    i64 b_k, b_column, start_row, start_column;
    Windows windows;
};

inline namespace LP_ISA {

// A thread has neighbouring rows, and pairs of columns: a pair shares the words of a counter, and the pairs of
// neighbouring threads lie side by side in shared memory.
LP_DEVICE int row_of(int i) { return int(threadIdx.x) / side * LP_SUMS + i; }
LP_DEVICE int column_of(int j) { return int(threadIdx.x) % side * 2 + (j >> 1) * 2 * side + (j & 1); }

typedef float Sums[LP_SUMS][LP_SUMS];

LP_DEVICE void add_products(const Panels &panels, int buffer, int k, Sums &sums) {
    float a[LP_SUMS], b[LP_SUMS];
    LP_UNROLL
    for (int i = 0; i < LP_SUMS; i += 4)
        *reinterpret_cast<Pack<float, 4> *>(a + i) =
            *reinterpret_cast<const Pack<float, 4> *>(&panels.a[buffer][k][row_of(i)]);
    LP_UNROLL
    for (int j = 0; j < LP_SUMS; j += 2)
        *reinterpret_cast<Pack<float, 2> *>(b + j) =
            *reinterpret_cast<const Pack<float, 2> *>(&panels.b[buffer][k][column_of(j)]);
    LP_UNROLL
    for (int i = 0; i < LP_SUMS; ++i) {
        LP_UNROLL
        for (int j = 0; j < LP_SUMS; ++j) sums[i][j] = __builtin_fmaf(a[i], b[j], sums[i][j]);
    }
}

// Where a square's random words come from: those of its first element, and the chain's first group.
struct Place {
    u64 key;
    u32 head, row, column;
    bool wide;  // more than 16 random bits
};

// The words of a counter, which columns 2 l and 2 l + 1 share, and four groups (two, where bits are many).
LP_DEVICE Words words_of(const Place &p, u32 row, u32 column, u32 g) {
    return philox<7>(p.head, row, column >> 4, (p.wide ? g >> 1 : g >> 2) << 3 | ((column >> 1) & 7), p.key);
}

template <class E>
LP_DEVICE E bits_of(const Words &w, bool wide, u32 column, u32 g) {
    const u32 low = column & 1 ? w.word[1] : w.word[0], high = column & 1 ? w.word[3] : w.word[2];
    if (wide) return E(g & 1 ? high : low);
    const u32 word = g & 2 ? high : low;
    return E(g & 1 ? word >> 16 : word & 0xffffu) << (Carrier<E>::fraction - 16);
}

// A number that SumRounder takes as drawn.
template <class E>
struct Drawn {
    E bits;
    LP_DEVICE E operator()(u32) const { return bits; }
};

// One sum rounded: by the short cuts of round_grid.h where they hold, else by round.h.
template <class E>
struct StepRounder {
    SumRounder<E, LP_STEP> any;
    Grid<u32> grid;
    bool quick;

    LP_DEVICE explicit StepRounder(const Rounding &r)
        : any(r), grid(make_rounder<u32>(r, true)), quick(sizeof(E) == 4 && has_grid<u32>(r)) {}

    LP_DEVICE float operator()(float sum, E random) const {
        const u32 bits = bit_cast<u32>(sum), magnitude = bits & Carrier<u32>::magnitude;
        if constexpr (sizeof(E) == 4 && LP_STEP == nearest_even) {
            if (quick && magnitude <= grid.largest) return bit_cast<float>(nearest_on_grid(bits, grid));
        }
        if constexpr (sizeof(E) == 4 && LP_STEP == stochastic) {
            if (quick && magnitude >= grid.smallest_normal && magnitude <= grid.largest) {
                const u32 r = u32(random) & grid.random_mask;
                const int shift = grid.drop - Carrier<u32>::fraction;
                const u32 up = shift >= 0 ? r << shift : r >> -shift, rounded = stochastic_on_grid(bits, up, grid);
                // Beyond the largest the overflow's policy says what becomes of it.
                if ((rounded & Carrier<u32>::magnitude) <= grid.largest) return bit_cast<float>(rounded);
            }
        }
        Drawn<E> drawn{random};
        return any(sum, drawn, 0);
    }
};

LP_DEVICE void round_sums(const Rounding &rounding, const Place &place, u32 g, Sums &sums) {
    typedef LP_STEP_LANE E;
    const StepRounder<E> round(rounding);
    LP_UNROLL
    for (int i = 0; i < LP_SUMS; ++i) {
        Words words = {};
        LP_UNROLL
        for (int j = 0; j < LP_SUMS; ++j) {
            E random = 0;
            if constexpr (LP_STEP == stochastic) {
                const u32 column = place.column + column_of(j);
                if (!(j & 1) || !(column & 1)) words = words_of(place, place.row + row_of(i), column, g);
                random = bits_of<E>(words, place.wide, column, g);
            }
            sums[i][j] = round(sums[i][j], random);
        }
    }
}

// Products [k, end) of a square's chains; the group of the first one has number g.
template <class A, class B>
LP_DEVICE void chain(const SumJob &job, const A &a, const B &b, i64 k, i64 end, u32 g, const Place &place,
                     Panels &panels, Sums &sums) {
    float left[LP_SUMS], right[LP_SUMS];
    a.fetch(k, end, left);
    b.fetch(k, end, right);
    i64 missing = job.group;  // products until the next rounding
    for (int buffer = 0; k < end; buffer ^= 1) {
        a.keep(left, panels.a[buffer]);
        b.keep(right, panels.b[buffer]);
        // One barrier a panel: who writes into a buffer has passed the barrier behind its last reading.
        __syncthreads();
        const int count = end - k < depth ? int(end - k) : depth;
        a.fetch(k + depth, end, left);
        b.fetch(k + depth, end, right);
        for (int at = 0; at < count;) {
            const int run = missing < count - at ? int(missing) : count - at;
            if (run == depth) {
                LP_UNROLL_FOUR  // all sixteen would ask for more registers than there are
                    for (int i = 0; i < depth; ++i) add_products(panels, buffer, i, sums);
            } else {
                for (int i = at; i < at + run; ++i) add_products(panels, buffer, i, sums);
            }
            at += run;
            missing -= run;
            if (LP_STEP >= 0 && (missing == 0 || k + at == end)) {
                if constexpr (LP_STEP >= 0) round_sums(job.step, place, g, sums);
                ++g;
            }
            if (missing == 0) missing = job.group;
        }
        k += depth;
    }
    __syncthreads();  // the next square writes into the buffers
}

LP_DEVICE i64 vertex_offset(const i64 (&index)[most_vertices], const i64 (&step)[most_vertices], int axes) {
    i64 at = 0;
    for (int axis = 0; axis < axes; ++axis) at += index[axis] * step[axis];
    return at;
}

// One square of one part of one vertex's sums, whose first row and column are given.
LP_DEVICE void square(const ProductJob &job, i64 part, i64 vertex, i64 row, i64 column, Panels &panels, float *to) {
    const SumJob &s = job.sums;
    i64 index[most_vertices] = {};
    for (i64 axis = s.axes - 1, rest = vertex; axis >= 0; rest /= s.shape[axis], --axis)
        index[axis] = rest % s.shape[axis];
    const char *x = static_cast<const char *>(s.x) + vertex_offset(index, s.x_step, s.axes);
    const char *y = static_cast<const char *>(job.b) + vertex_offset(index, job.b_step, s.axes);
#if LP_WINDOWS
    const WindowPanel<LP_A_READ, LP_A, true> a(s.source, x, row, s.m, s.x_row, s.x_k, job.windows);
    const WindowPanel<LP_B_READ, LP_B, false> b(job.b_format, y, column, s.n, job.b_column, job.b_k, job.windows);
#else
    const StridedPanel<LP_A_READ, LP_A> a(s.source, x, row, s.m, s.x_row, s.x_k);
    const StridedPanel<LP_B_READ, LP_B> b(job.b_format, y, column, s.n, job.b_column, job.b_k);
#endif
    Place place;
    place.key = s.key;
    place.wide = s.step.random_bits > 16;
    // A vertex is a whole batch where rows are numbered through.
    const i64 batch = s.through ? s.batch.base + vertex : number_at(s.batch, index, s.axes);
    place.head = u32(tag_step + place.wide) << 24 | (u32(batch) & 0xffffffu);
    place.row = u32((s.through ? s.row.base : number_at(s.row, index, s.axes)) + row);
    place.column = u32(number_at(s.column, index, s.axes) + column);
    const i64 begin = part * s.part, end = s.part < s.k - begin ? begin + s.part : s.k;
    const i64 start = vertex_offset(index, job.start_step, s.axes);
    Sums sums;
    LP_UNROLL
    for (int i = 0; i < LP_SUMS; ++i) {
        LP_UNROLL
        for (int j = 0; j < LP_SUMS; ++j) {
            const i64 r = row + row_of(i), c = column + column_of(j);
            sums[i][j] = 0.0f;
            if (job.start && r < s.m && c < s.n)
                sums[i][j] = *reinterpret_cast<const float *>(reinterpret_cast<const char *>(job.start) + start +
                                                              r * job.start_row + c * job.start_column);
        }
    }
    const u32 first = u32(number_at(s.first_group, index, s.axes) + begin / s.group);
    chain(s, a, b, begin, end, first, place, panels, sums);
    LP_UNROLL
    for (int i = 0; i < LP_SUMS; ++i) {
        LP_UNROLL
        for (int j = 0; j < LP_SUMS; ++j) {
            const i64 r = row + row_of(i), c = column + column_of(j);
            if (r < s.m && c < s.n) to[r * s.n + c] = sums[i][j];
        }
    }
}

}  // namespace LP_ISA
}  // namespace lowprec

// `parts`: float32, all elements of one part after those of another.
extern "C" __global__ void __launch_bounds__(256) lowprec_product(lowprec::ProductJob job, float *parts) {
    using namespace lowprec;
    __shared__ Panels panels;
    const SumJob &s = job.sums;
    const i64 across = (s.n + size - 1) / size, down = (s.m + size - 1) / size;
    const i64 squares = across * down * s.vertices * s.parts;
    for (i64 item = blockIdx.x; item < squares; item += gridDim.x) {
        const i64 matrix = item / (across * down);  // of a part and a vertex
        square(job, matrix / s.vertices, matrix % s.vertices, item / across % down * size, item % across * size, panels,
               parts + matrix * s.m * s.n);
    }
}
