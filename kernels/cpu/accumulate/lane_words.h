// Random words of sums whose neighbours are of different convolution groups (the map of lowprec.matmul, in which a
// group is the batch).
//
// A counter is (tag and batch, row, column block, block of groups and column): a lane has its own batch and column, all
// lanes have one column block. What the first three rounds of Philox make of it hangs on the lane and the row, or on
// the lane and the block, so that most of them are made once.
#ifndef LOWPREC_LANE_WORDS_H
#define LOWPREC_LANE_WORDS_H

#include "accumulate/steps.h"

namespace lowprec {
inline namespace LP_ISA {

// Lanes of a vector of floats stand in two vectors of counters: the even ones, and the odd ones.
struct LaneCounters {
    u64v part[2];
};

// The high halves of 64-bit lanes, even lanes' and odd lanes' in turn, as `pair` does with low halves.
LP_INLINE u32v high_pair(u64v even, u64v odd) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (u32v)_mm512_mask_movehdup_ps((__m512)odd, 0x5555, (__m512)even);
#else
    return (u32v)((even >> 32) | (odd & 0xffffffff00000000ull));
#endif
}

// The part of a block of groups in its counters.
struct BlockLanes {
    LaneCounters word0, word2, word3;
};

// The words of one vector of lanes.
class LaneWords {
  public:
    static constexpr u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    static constexpr int rounds = 7, later = rounds - 3;

    LaneWords() = default;

    // Lane number i has the number `first` + i among all groups' outputs, of which each group has `outputs`.
    LaneWords(u64 key, int tag, u32 batch, u32 column, i64 first, i64 outputs)
        : k0(u32(key)),
          k1(u32(key >> 32)),
          mixed(outputs > 1 || (column & 1)),
          shared(outputs % 2 == 0 && column % 2 == 0) {
        const u64 block = u64(m1) * (column >> 4);
        enter = u32(block >> 32) ^ k0;
        low = u32(block);
        for (int r = 0; r < later; ++r) {
            keys[r][0] = k0 + u32(r + 3) * w0;
            keys[r][1] = k1 + u32(r + 3) * w1;
        }
        for (int i = 0; i < lanes32; ++i) {
            const u32 lane = u32((first + i) % outputs) + column % 16;
            const u64 head = u64(m0) * ((u32(tag) << 24) | ((batch + u32((first + i) / outputs)) & 0xffffffu));
            head_high.part[i % 2][i / 2] = (head >> 32) ^ k1 ^ (lane >> 1);
            head_low.part[i % 2][i / 2] = u32(head) ^ u32(k1 + w1);
            odd[i] = lane & 1 ? ~0u : 0u;
        }
    }

    // What a block of groups, the end of whose counters is c3, brings to them.
    LP_INLINE BlockLanes block(u32 c3) const {
        BlockLanes b;
        for (int h = 0; h < 2; ++h) {
            const u64v second = multiply_wide(head_high.part[h] ^ u64(c3), u64v{} + m1);
            const u64v third = multiply_wide((second >> 32) ^ u64(low ^ u32(k0 + w0)), u64v{} + m0);
            b.word0.part[h] = (second & 0xffffffffull) ^ u64(u32(k0 + 2 * w0));
            b.word2.part[h] = (third >> 32) ^ u64(u32(k1 + 2 * w1));
            b.word3.part[h] = third;
        }
        return b;
    }

  private:
    template <int rows>
    friend class LaneDraws;

    u32 k0, k1;
    bool mixed, shared;  // some columns are odd; every even one has the next beside it, which shares its counters
    u32 enter, low;
    LaneCounters head_high, head_low;
    u32v odd;
    u64 keys[later][2];
};

// The words of some rows of such a vector. What lane and row make of a counter without its block is kept for all blocks
// that a tile asks for.
template <int rows>
class LaneDraws {
  public:
    LaneDraws(const LaneWords &lanes, u32 row, u32 row_step) : w(lanes) {
        for (int i = 0; i < rows; ++i, row += row_step) {
            const u64 product = u64(LaneWords::m0) * (row ^ w.enter);
            second[i] = u32(product);
            for (int h = 0; h < 2; ++h)
                third[i][h] = multiply_wide(w.head_low.part[h] ^ (product >> 32), u64v{} + LaneWords::m1);
        }
    }

    // words[pair][i][0] of the sums in row i; of the first pair only, unless `both`.
    __attribute__((noinline)) void draw(const BlockLanes &b, bool both, u32v (&to)[2][rows][1]) const {
        if (w.shared)
            both ? make<true, true>(b, to) : make<false, true>(b, to);
        else
            both ? make<true, false>(b, to) : make<false, false>(b, to);
    }

  private:
    template <bool both, bool shared>
    LP_INLINE void make(const BlockLanes &b, u32v (&to)[2][rows][1]) const {
        constexpr int parts = shared ? 1 : 2, abreast = chains / parts;
        static_assert(rows % abreast == 0);
        constexpr int later = LaneWords::later;
        constexpr u32 m0 = LaneWords::m0, m1 = LaneWords::m1;
        const auto &keys = w.keys;
        for (int i = 0; i < rows; i += abreast) {
            Counters c[chains];
            for (int n = 0; n < chains; ++n) {
                c[n].c1 = third[i + n / parts][n % parts];
                c[n].c0 = (c[n].c1 >> 32) ^ b.word0.part[n % parts];
                c[n].c2 = b.word2.part[n % parts] ^ second[i + n / parts];
                c[n].c3 = b.word3.part[n % parts];
            }
            for (int r = 0; r < later - 1; ++r)
                for (int n = 0; n < chains; ++n) {
                    const u64v a = multiply_wide(c[n].c0, u64v{} + m0), d = multiply_wide(c[n].c2, u64v{} + m1);
                    if (both || r < later - 2) c[n].c0 = exclusive_or(d >> 32, c[n].c1, u64v{} + keys[r][0]);
                    c[n].c2 = exclusive_or(a >> 32, c[n].c3, u64v{} + keys[r][1]);
                    c[n].c1 = d;
                    c[n].c3 = a;
                }
            for (int n = 0; n < abreast; ++n) {
                const Counters &even = c[parts * n], &next = c[parts * n + parts - 1];
                to[0][i + n][0] = last<shared>(even.c2, next.c2, m1, even.c1, next.c1, keys[later - 1][0]);
                if (both) to[1][i + n][0] = last<shared>(even.c0, next.c0, m0, even.c3, next.c3, keys[later - 1][1]);
            }
        }
    }

    // A last round's words: the high halves of products, mixed, in even columns; the low halves in odd ones.
    template <bool shared>
    LP_INLINE u32v last(u64v even, u64v next, u32 by, u64v even_before, u64v next_before, u64 key) const {
        const u64v a = multiply_wide(even, u64v{} + by);
        if constexpr (shared) return last_pair(a, even_before, key);
        const u64v b = multiply_wide(next, u64v{} + by);
        const u64v high = (u64v)high_pair(a, b), before = (u64v)pair(even_before, next_before);
        const u32v words = (u32v)exclusive_or(high, before, u64v{} + (key << 32 | key));
        if (!w.mixed) return words;
        return (words & ~w.odd) | (pair(a, b) & w.odd);
    }

    const LaneWords &w;
    u64v third[rows][2];
    u64 second[rows];
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
