// Random words of tiles whose rows are columns of the map of lowprec.matmul and whose lanes are its rows.
//
// Two neighbouring columns share a counter, so a vector of lanes takes two vectors of counters for two rows of a tile.
#ifndef LOWPREC_TURNED_WORDS_H
#define LOWPREC_TURNED_WORDS_H

#include "accumulate/lane_words.h"
#include "accumulate/tile_words.h"

namespace lowprec {
inline namespace LP_ISA {

// As Draws; place.column is even, and no tile reaches into another block of 16 columns with what is stored of it.
template <int rows, int vectors>
class TurnedDraws {
  public:
    explicit TurnedDraws(const WordPlace &place) {
        const u32 k0 = u32(place.key), k1 = u32(place.key >> 32);
        const u64 head = u64(m0) * place.head, block = u64(m1) * (place.column >> 4);
        first_mix = u32(head >> 32) ^ k1;
        second_mix = u32(block) ^ (k0 + w0);
        first_lane = (place.column & 15) >> 1;
        for (u32 r = 0; r < u32(later); ++r) {
            keys[r][0] = k0 + (r + 3) * w0;
            keys[r][1] = k1 + (r + 3) * w1;
        }
        for (int j = 0; j < 2 * vectors; ++j) {
            const u64v row = lane_numbers(0) * 2 + u64(place.row + u32(j / 2) * lanes32 + u32(j % 2));
            const u64v second = multiply_wide(row ^ u64(u32(block >> 32) ^ k0), u64v{} + m0);
            const u64v third = multiply_wide((second >> 32) ^ u64(u32(head) ^ (k1 + w1)), u64v{} + m1);
            c0[j] = (third >> 32) ^ u64(k0 + 2 * w0);
            c1[j] = third;  // of this only the low half counts
            c2[j] = (second & 0xffffffffull) ^ u64(u32(k1 + 2 * w1));
        }
    }

    __attribute__((noinline)) void words(u32 c3, u32v (&to)[2][rows][vectors]) const { make<true>(c3, to); }
    __attribute__((noinline)) void first_words(u32 c3, u32v (&to)[2][rows][vectors]) const { make<false>(c3, to); }

  private:
    static constexpr u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    static constexpr int later = 7 - 3;

    template <bool both>
    LP_INLINE void make(u32 c3, u32v (&to)[2][rows][vectors]) const {
        constexpr int abreast = lanes64 == 8 ? vectors : 1;  // vectors of lanes
        for (int i = 0; i < rows; i += 2) {
            const u64 second = u64(m1) * (first_mix ^ (c3 + ((first_lane + u32(i / 2)) & 7)));
            const u64 third = u64(m0) * (u32(second >> 32) ^ second_mix);
            for (int j = 0; j < vectors; j += abreast) {
                Counters c[2 * abreast];
                for (int n = 0; n < 2 * abreast; ++n) {
                    c[n].c0 = c0[2 * j + n] ^ u64(u32(second));
                    c[n].c1 = c1[2 * j + n];
                    c[n].c2 = c2[2 * j + n] ^ (third >> 32);
                    c[n].c3 = u64v{} + third;
                }
                for (int r = 0; r < later - 1; ++r)
                    for (int n = 0; n < 2 * abreast; ++n) {
                        const u64v a = multiply_wide(c[n].c0, u64v{} + m0), b = multiply_wide(c[n].c2, u64v{} + m1);
                        if (both || r < later - 2) c[n].c0 = exclusive_or(b >> 32, c[n].c1, u64v{} + keys[r][0]);
                        c[n].c2 = exclusive_or(a >> 32, c[n].c3, u64v{} + keys[r][1]);
                        c[n].c1 = b;
                        c[n].c3 = a;
                    }
                for (int n = 0; n < abreast; ++n) {
                    const Counters &even = c[2 * n], &odd = c[2 * n + 1];
                    last(even.c2, odd.c2, m1, even.c1, odd.c1, keys[later - 1][0], to[0], i, j + n);
                    if (both) last(even.c0, odd.c0, m0, even.c3, odd.c3, keys[later - 1][1], to[1], i, j + n);
                }
            }
        }
    }

    // A last round's words: the high halves of products, mixed, are those of even columns, the low halves of odd ones.
    LP_INLINE static void last(u64v even, u64v odd, u32 by, u64v even_before, u64v odd_before, u64 key,
                               u32v (&to)[rows][vectors], int i, int j) {
        const u64v a = multiply_wide(even, u64v{} + by), b = multiply_wide(odd, u64v{} + by);
        const u64v high = (u64v)high_pair(a, b), before = (u64v)pair(even_before, odd_before);
        to[i][j] = (u32v)exclusive_or(high, before, u64v{} + (key << 32 | key));
        if (i + 1 < rows) to[i + 1][j] = pair(a, b);
    }

    u32 first_mix, second_mix, first_lane;
    u64v c0[2 * vectors], c1[2 * vectors], c2[2 * vectors];
    u64 keys[later][2];
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
