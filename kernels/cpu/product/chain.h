// One register tile of a product: rows x vectors sums, each a chain of fused multiply-adds, rounded after every group.
#ifndef LOWPREC_CHAIN_H
#define LOWPREC_CHAIN_H

#include "accumulate/steps_fast.h"
#include "product/product_job.h"

namespace lowprec {
inline namespace LP_ISA {

// What every tile of one product shares, and (the last lines) what is its own.
struct Chain {
    i64 group, count;       // products of this chain, from the operands' first on
    u32 first_group;        // global number of the chain's first group
    bool whole_words;       // more than 16 random bits
    const float *start;     // what sums start from, as a tile
    i64 start_row;          // floats between its rows
    i64 a_row, a_k;         // floats
    i64 b_k;                // floats between rows of the packed panel
    float largest_product;  // no product of two operands is larger; set where steps ask for it
    WordPlace place;
};

// Products of two values of at most 11 bits are exact in float32: no fused instruction is needed.
template <bool exact>
LP_INLINE f32v multiply_add(f32v a, f32v b, f32v c) {
#if !defined(__FMA__) && !defined(__aarch64__)
    if (exact) return c + a * b;
#endif
    return fused(a, b, c);
}

// One product more for every sum of a tile, and, where rounding looks at each sum alone, its rounding.
template <class Step, int rows, int vectors, bool along_k, bool exact>
LP_INLINE void add_products(const Chain &c, const float *a, const float *b, i64 k, f32v (&tile)[rows][vectors]) {
    f32v bk[vectors];
    for (int j = 0; j < vectors; ++j) bk[j] = load<f32v>(b + k * c.b_k + j * lanes32);
    for (int i = 0; i < rows; ++i) {
        const f32v ak = splat_real(along_k ? a[i * c.a_row + k] : a[k * c.a_k + i]);
        for (int j = 0; j < vectors; ++j) tile[i][j] = Step::each(multiply_add<exact>(ak, bk[j], tile[i][j]));
    }
}

template <int rows, int vectors>
LP_INLINE void load_tile(const Chain &c, f32v (&tile)[rows][vectors]) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) tile[i][j] = load<f32v>(c.start + i * c.start_row + j * lanes32);
}

// Products rounded one by one: the short way while no sum can overflow, then the long way to the end. The short way
// gives zeros +: that shows only in sums that are zero when it is looked at, and then all is done again the long way.
template <class Step, int rows, int vectors, bool along_k, bool exact>
LP_INLINE void add_one_by_one(const Chain &c, const Step &step, const float *a, const float *b,
                              f32v (&tile)[rows][vectors]) {
    constexpr int some = rows % 2 ? rows : rows / 2;  // half a tile is rounded while the other is added to
    const Bound bound = step.bound(1, c.largest_product);
    i64 k = 0;
    while (k < c.count && bound.holds(tile)) {
        for (const i64 stop = bound.steps < c.count - k ? k + bound.steps : c.count; k < stop; ++k)
            for (int i = 0; i < rows; i += some) {
                auto &part = *reinterpret_cast<f32v(*)[some][vectors]>(&tile[i]);
                add_products<NoStep, some, vectors, along_k, exact>(c, a + i * (along_k ? c.a_row : 1), b, k, part);
                step.round_bounded(part);
            }
        if (__builtin_expect(any_smaller(tile, 0x1p-149f), 0)) {
            load_tile(c, tile);
            k = 0;
            break;
        }
    }
    for (; k < c.count; ++k) add_products<Step, rows, vectors, along_k, exact>(c, a, b, k, tile);
}

template <int rows, int vectors>
LP_INLINE void store_tile(const f32v (&tile)[rows][vectors], float *to) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) store(to + (i * vectors + j) * lanes32, tile[i][j]);
}

template <class Step, int rows, int vectors, bool along_k, bool exact>
LP_INLINE void run_chain(const Chain &c, const Step &step, const float *a, const float *b, float *to) {
    if (c.count < 1) __builtin_unreachable();  // lets the sums stay in registers throughout
    f32v tile[rows][vectors];
    load_tile(c, tile);
    if constexpr (Step::alone && Step::bounded) {
        add_one_by_one<Step, rows, vectors, along_k, exact>(c, step, a, b, tile);
        return store_tile(tile, to);
    }
    u32v words[2][Step::random ? rows : 1][vectors];
    const bool wide = Step::random && c.whole_words;
    const Draws<7, Step::random ? rows : 1, vectors> draws(c.place);
    const u32 last = c.first_group + u32((c.count - 1) / (Step::random ? c.group : c.count));
    i64 k = 0;
    bool fresh = true;
    if constexpr (Step::alone) {
        if (c.group == 1)
            for (; k < c.count; ++k) add_products<Step, rows, vectors, along_k, exact>(c, a, b, k, tile);
    }
    i64 look = 0;  // groups until sums are looked at again
    bool calm = false;
    for (u32 g = c.first_group; k < c.count; ++g) {
        if constexpr (Step::bounded && !Step::alone) {
            if (look == 0) {
                const Bound bound = step.bound(c.group, c.largest_product);
                calm = bound.holds(tile);
                look = bound.steps;
            }
            --look;
        }
        const i64 stop = Step::active && c.group < c.count - k ? k + c.group : c.count;
        for (; k < stop; ++k) add_products<NoStep, rows, vectors, along_k, exact>(c, a, b, k, tile);
        if constexpr (Step::active) {
            int pair_number = 0, shift = 0;
            if constexpr (Step::random) {
                if (fresh || (g & (wide ? 1 : 3)) == 0) {
                    const u32 c3 = wide ? (g >> 1) << 3 : (g >> 2) << 3;
                    if (wide ? last >> 1 == g >> 1 && !(last & 1) : last >> 2 == g >> 2 && !(last & 2))
                        draws.first_words(c3, words);
                    else
                        draws.words(c3, words);
                }
                fresh = false;
                pair_number = wide ? g & 1 : (g >> 1) & 1;
                shift = wide ? 0 : int(g & 1) * 16;
            }
            if constexpr (Step::bounded && !Step::alone) {
                if (calm) {
                    step.round_bounded(tile, words[pair_number], shift);
                    continue;
                }
            }
            step.round(tile, words[pair_number], shift);
        }
    }
    store_tile(tile, to);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
