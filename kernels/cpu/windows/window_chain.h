// Register tiles of a convolution: the sums of a vector of lanes at `rows` windows, each a chain of fused multiply-adds
// with a term of its own lane.
#ifndef LOWPREC_WINDOW_CHAIN_H
#define LOWPREC_WINDOW_CHAIN_H

#include "accumulate/lane_words.h"
#include "product/chain.h"
#include "windows/window_job.h"

namespace lowprec {
inline namespace LP_ISA {

// What every tile of one vector of lanes shares, and (the last lines) where the first of some is; others follow it.
struct WindowChain {
    const i64 *terms;         // where the terms of a window are, in floats from its first
    const int *ends;          // numbers of products at which groups end
    int groups;               // how many,
    i64 longest;              // and the most products of one
    bool goes_on;             // the last group's other products come later
    const float *weights;     // a vector for each term
    const float *start;       // what sums start from, a vector for each row
    i64 weights_row, row;     // floats from one to the next; of x from a tile's row to the next
    i64 start_row, sums_row;  // start_row 0: 0 in lanes that are used, 1 in the others
    float largest_product;    // no product of two operands is larger; set where steps ask for it
    const LaneWords *words;   // where rounding takes random bits
    const BlockLanes *block;  // of each block of groups
    u32 first_group;
    bool whole_words;
    u32 number_step;  // from a row's number, for the random bits, to the next
    const float *x;
    u32 number;
    i64 tiles;
};

inline LaneWords lane_words(const WindowJob &job, i64 first) {
    const int tag = tag_step + (job.step.rounding.random_bits > 16 ? 1 : 0);
    return LaneWords(job.key, tag, job.batch, job.column, first, job.outputs);
}

// What `count` blocks of groups, from a chain's first on, bring to the counters.
inline void fill_blocks(const LaneWords &words, const WindowChain &c, i64 count, BlockLanes *to) {
    const u32 first = c.first_group >> (c.whole_words ? 1 : 2);
    for (i64 b = 0; b < count; ++b) to[b] = words.block((first + u32(b)) << 3);
}

// One term more of every sum: of x, `row` floats apart, and a vector of weights.
template <class Step, int rows, bool exact>
LP_INLINE void add_term(const float *x, i64 row, const float *weights, f32v (&tile)[rows][1]) {
    const f32v weight = load<f32v>(weights);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
        tile[i][0] = Step::each(multiply_add<exact>(load<f32v>(x + i * row), weight, tile[i][0]));
}

// The random words of the group at hand, drawn for all groups of a block at once.
template <int rows>
struct WindowWords {
    const LaneDraws<rows> draws;
    const BlockLanes *block;  // of the group at hand
    const bool wide;
    const u32 last;  // number of the last group
    bool fresh = true;
    u32v words[2][rows][1];
    int shift = 0;

    WindowWords(const WindowChain &c, u32 number)
        : draws(*c.words, number, c.number_step),
          block(c.block),
          wide(c.whole_words),
          last(c.first_group + u32(c.groups) - 1) {}

    LP_INLINE const u32v (*of(u32 g))[1] {
        const u32 place = g & (wide ? 1 : 3), second = wide ? 1 : 2;
        if (fresh || place == 0) draws.draw(*block++, place + (last - g) >= second, words);
        fresh = false;
        shift = wide ? 0 : int(g & 1) * 16;
        return words[place >= second];
    }
};

struct NoWindowWords {
    NoWindowWords(const WindowChain &, u32) {}
};

// All terms of a tile.
template <class Step, int rows, bool exact>
LP_INLINE void add_terms(const WindowChain &c, const Step &step, const float *x, u32 number, Watch<Step::bounded> watch,
                         f32v (&tile)[rows][1]) {
    const i64 *term = c.terms;
    const float *weights = c.weights;
    if constexpr (Step::alone) {
        if (c.longest == 1) {
            for (const i64 *const end = term + c.ends[c.groups - 1]; term < end; weights += c.weights_row)
                add_term<Step, rows, exact>(x + *term++, c.row, weights, tile);
            return;
        }
    }
    std::conditional_t<Step::random, WindowWords<rows>, NoWindowWords> words(c, number);
    for (int g = 0; g < c.groups; ++g) {
        bool calm = false;
        if constexpr (Step::bounded) calm = watch.next(tile);
        const i64 *const end = c.terms + c.ends[g];
        do {
            add_term<NoStep, rows, exact>(x + *term++, c.row, weights, tile);
            weights += c.weights_row;
        } while (term < end);
        if constexpr (Step::active) {
            if (c.goes_on && g == c.groups - 1) break;
            const u32v(*drawn)[1] = nullptr;
            int shift = 0;
            if constexpr (Step::random) {
                drawn = words.of(c.first_group + u32(g));
                shift = words.shift;
            }
            if constexpr (Step::bounded) {
                if (calm) {
                    step.round_bounded(tile, drawn, shift, watch.tiny);
                    continue;
                }
            }
            step.round(tile, drawn, shift);
        }
    }
}

template <class Step, int rows, bool exact>
void window_kernel(const WindowChain &c, const Rounders &rounders, float *sums) {
    if (c.groups < 1) __builtin_unreachable();  // this, no empty groups and early unrolling keep the sums in registers
    const Step step(rounders);
    static_assert(!(Step::bounded && Step::alone));
    Watch<Step::bounded> watch(step, c.longest, c.largest_product);
    if constexpr (Step::bounded) watch.start(c.start_row == 0);
    const float *x = c.x;
    u32 number = c.number;
    for (i64 t = 0; t < c.tiles; ++t, x += rows * c.row, number += rows * c.number_step, sums += rows * c.sums_row) {
        f32v tile[rows][1];
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) tile[i][0] = load<f32v>(c.start + i * c.start_row);
        add_terms<Step, rows, exact>(c, step, x, number, watch, tile);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) store(sums + i * c.sums_row, tile[i][0]);
    }
}

typedef void (*WindowKernel)(const WindowChain &, const Rounders &, float *sums);

// `rows` is window_rows or half of that.
constexpr int window_rows = LP_VECTOR_BYTES >= 32 ? 8 : 4;

WindowKernel window_kernel_of(Path path, int rows, bool exact);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
