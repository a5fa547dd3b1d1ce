// One register tile of a product: rows x vectors sums, each a chain of fused multiply-adds for every part, rounded
// after every group; the sums of parts are added up beside it.
#ifndef LOWPREC_CHAIN_H
#define LOWPREC_CHAIN_H

#include <type_traits>

#include "accumulate/finish.h"
#include "accumulate/steps_fast.h"
#include "product/product_job.h"

namespace lowprec {
inline namespace LP_ISA {

template <class Draw, int rows, int vectors>
struct GroupWords;

// What every tile of one product shares, and (the last lines) what is its own. Whoever's terms lie elsewhere, or whose
// sums take other random words, says so in a chain of its own.
struct Chain {
    i64 group, part;        // products between roundings, and of a part (whole groups)
    i64 count;              // products of all parts, from the operands' first on
    u32 first_group;        // global number of their first group
    bool whole_words;       // more than 16 random bits
    const float *start;     // what sums start from, as a tile
    i64 start_row;          // floats between its rows
    i64 a_row, a_k;         // floats
    i64 b_k;                // floats between rows of the packed panel
    float largest_product;  // no product of two operands is larger; set where steps ask for it
    Alignment alignment;
    Stages stages;
    WordPlace place;

    template <int rows, int vectors>
    using Words = GroupWords<Draws<7, rows, vectors>, rows, vectors>;
    LP_INLINE i64 a_at(i64 k) const { return k * a_k; }
    LP_INLINE i64 b_at(i64 k) const { return k * b_k; }
    LP_INLINE static f32v b_vector(const float *b, i64 at) { return load<f32v>(b + at); }
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
template <class Step, int rows, int vectors, bool exact, class C>
LP_INLINE void add_products(const C &c, const float *a, const float *b, i64 k, f32v (&tile)[rows][vectors]) {
    f32v bk[vectors];
    for (int j = 0; j < vectors; ++j) bk[j] = C::b_vector(b, c.b_at(k) + j * lanes32);
    for (int i = 0; i < rows; ++i) {
        const f32v ak = splat_real(a[i * c.a_row + c.a_at(k)]);
        for (int j = 0; j < vectors; ++j) tile[i][j] = Step::each(multiply_add<exact>(ak, bk[j], tile[i][j]));
    }
}

template <int rows, int vectors>
LP_INLINE void load_tile(const Chain &c, f32v (&tile)[rows][vectors]) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) tile[i][j] = load<f32v>(c.start + i * c.start_row + j * lanes32);
}

// Products [k, end) rounded one by one: the short way while no sum can overflow, then the long way to the end. The
// short way gives zeros +: that shows only in sums that are zero when it is looked at, and then all is done again the
// long way.
template <class Step, int rows, int vectors, bool exact, class C>
LP_INLINE void add_one_by_one(const C &c, const Step &step, const float *a, const float *b, i64 k, i64 end,
                              f32v (&tile)[rows][vectors]) {
    constexpr int some = rows % 2 ? rows : rows / 2;  // half a tile is rounded while the other is added to
    const Bound bound = step.bound(1, c.largest_product);
    const i64 begin = k;
    while (k < end && bound.holds(tile)) {
        for (const i64 stop = bound.steps < end - k ? k + bound.steps : end; k < stop; ++k)
            for (int i = 0; i < rows; i += some) {
                auto &part = *reinterpret_cast<f32v(*)[some][vectors]>(&tile[i]);
                add_products<NoStep, some, vectors, exact>(c, a + i * c.a_row, b, k, part);
                step.round_bounded(part);
            }
        if (__builtin_expect(any_smaller(tile, 0x1p-149f), 0)) {
            load_tile(c, tile);
            k = begin;
            break;
        }
    }
    for (; k < end; ++k) add_products<Step, rows, vectors, exact>(c, a, b, k, tile);
}

// The random words of the group at hand. Neighbouring groups share them, also where a part ends between two.
template <class Draw, int rows, int vectors>
struct GroupWords {
    const Draw draws;
    const bool wide;
    const u32 last;  // number of the last group
    bool fresh = true;
    u32v words[2][rows][vectors];
    int shift = 0;

    explicit GroupWords(const Chain &c)
        : draws(c.place), wide(c.whole_words), last(c.first_group + u32((c.count - 1) / c.group)) {}

    LP_INLINE const u32v (*of(u32 g)) [vectors] {
        if (fresh || (g & (wide ? 1 : 3)) == 0) {
            const u32 c3 = wide ? (g >> 1) << 3 : (g >> 2) << 3;
            if (wide ? last >> 1 == g >> 1 && !(last & 1) : last >> 2 == g >> 2 && !(last & 2))
                draws.first_words(c3, words);
            else
                draws.words(c3, words);
        }
        fresh = false;
        shift = wide ? 0 : int(g & 1) * 16;
        return words[wide ? g & 1 : (g >> 1) & 1];
    }
};

struct NoWords {
    static constexpr int shift = 0;
    explicit NoWords(const Chain &) {}
};

// When steps that ask how large sums can be look at them: at first, and whenever `bound` holds no longer.
template <bool asked>
struct Watch {
    template <class Step>
    Watch(const Step &, i64, float) {}
};

template <>
struct Watch<true> {
    const Bound bound;
    i64 groups = 0;  // until the next look
    bool calm = false;
    int tiny = 0;  // see Step::round_bounded

    template <class Step>
    Watch(const Step &step, i64 group, float largest_product) : bound(step.bound(group, largest_product)) {}

    LP_INLINE void start(bool zeros) {  // sums start from 0, and from 1 in empty lanes
        calm = zeros && bound.start >= 1;
        groups = zeros ? bound.steps : 0;
    }
    template <int rows, int vectors>
    LP_INLINE bool next(const f32v (&tile)[rows][vectors]) {
        if (groups == 0) {
            calm = bound.holds(tile);
            groups = bound.steps;
        }
        --groups;
        return calm;
    }
};

// Products [k, end), rounded after every group, of which the first has number g.
template <class Step, int rows, int vectors, bool exact, class C, class Words>
LP_INLINE void add_groups(const C &c, const Step &step, const float *a, const float *b, i64 k, i64 end, u32 g,
                          Words &words, Watch<Step::bounded> &watch, f32v (&tile)[rows][vectors]) {
    if constexpr (Step::bounded) watch.start(c.start_row == 0);
    for (; k < end; ++g) {
        bool calm = false;
        if constexpr (Step::bounded) calm = watch.next(tile);
        const i64 stop = Step::active && c.group < end - k ? k + c.group : end;
        for (; k < stop; ++k) add_products<NoStep, rows, vectors, exact>(c, a, b, k, tile);
        if constexpr (Step::active) {
            const u32v(*drawn)[vectors] = nullptr;
            if constexpr (Step::random) drawn = words.of(g);
            if constexpr (Step::bounded) {
                if (calm) {
                    step.round_bounded(tile, drawn, words.shift, watch.tiny);
                    continue;
                }
            }
            step.round(tile, drawn, words.shift);
        }
    }
}

template <int rows, int vectors>
LP_INLINE void store_tile(const f32v (&tile)[rows][vectors], float *to) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) store(to + (i * vectors + j) * lanes32, tile[i][j]);
}

// Takes the sums of part number p; after the last part those of the last stage are the tile's.
template <int rows, int vectors>
LP_INLINE void keep_part(const Chain &c, const Rounders &between, const f32v (&tile)[rows][vectors], i64 p,
                         TileSums &to) {
    if (c.stages.count > 1) {
        alignas(64) float part[rows * vectors * lanes32];
        store_tile(tile, part);
        return take_part(part, to, p, rows, vectors, c.stages, between, c.place);
    }
    if (p == 0) return store_tile(tile, to[0]);
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) {
            float *sum = to[0] + (i * vectors + j) * lanes32;
            store(sum, load<f32v>(sum) + tile[i][j]);
        }
}

// The chains of products [k, end) from their start on.
template <class Step, int rows, int vectors, bool exact, class C, class Words>
LP_INLINE void add_part(const C &c, const Step &step, const float *a, const float *b, i64 k, i64 end, Words &words,
                        Watch<Step::bounded && !Step::alone> &watch, f32v (&tile)[rows][vectors]) {
    load_tile(c, tile);
    if constexpr (Step::alone && Step::bounded) {
        add_one_by_one<Step, rows, vectors, exact>(c, step, a, b, k, end, tile);
    } else {
        if constexpr (Step::alone) {
            if (c.group == 1)
                for (; k < end; ++k) add_products<Step, rows, vectors, exact>(c, a, b, k, tile);
        }
        const u32 g = Step::random ? c.first_group + u32(k / c.group) : 0;
        add_groups<Step, rows, vectors, exact>(c, step, a, b, k, end, g, words, watch, tile);
    }
}

template <class Step, int rows, int vectors, bool exact, class C>
LP_INLINE void run_chains(const C &c, const Rounders &rounders, const float *a, const float *b, TileSums &to) {
    if (c.count < 1 || c.part < 1) __builtin_unreachable();  // lets the sums stay in registers throughout
    const Step step(rounders);
    std::conditional_t<Step::random, typename C::template Words<rows, vectors>, NoWords> words(c);
    Watch<Step::bounded && !Step::alone> watch(step, c.group, c.largest_product);
    i64 k = 0;
    for (i64 p = 0; k < c.count; ++p) {
        const i64 end = c.part < c.count - k ? k + c.part : c.count;
        f32v tile[rows][vectors];
        add_part<Step, rows, vectors, exact>(c, step, a, b, k, end, words, watch, tile);
        keep_part(c, rounders, tile, p, to);
        k = end;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
