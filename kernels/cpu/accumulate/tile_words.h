// Random words of register tiles: the map of matmul (see lowprec.matmul), with what a tile's counters share done once.
#ifndef LOWPREC_TILE_WORDS_H
#define LOWPREC_TILE_WORDS_H

#include "isa/lanes.h"
#include "lowprec/random.h"

namespace lowprec {
inline namespace LP_ISA {

// Where a tile lies, for its random words.
struct WordPlace {
    u64 key;
    u32 head;         // tag << 24 | batch
    u32 row, column;  // of the tile's first element; the column a multiple of lanes32
};

// One word of each counter in the low half of a lane, the other in the high half, after a last round: the product's
// high half is mixed with the word before and the key, its low half stays.
LP_INLINE u32v last_pair(u64v product, u64v before, u64 key) {
    i32v swap;
    for (int i = 0; i < lanes32; ++i) swap[i] = i ^ 1;
    const u64v turned = (u64v)__builtin_shuffle((u32v)product, swap);
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    const i64v low = i64v{} + i64(0xffffffff);
    const u64v mixed = (u64v)__builtin_ia32_pternlogq512_mask((i64v)turned, (i64v)before, low, 0x78, (unsigned char)-1);
#else
    const u64v mixed = turned ^ (before & 0xffffffffull);
#endif
    return (u32v)(mixed ^ (u64v{} + key));
}

// Random words of a tile. The counter is (head, row, column block, group block | lane): all but the last are known
// before the chain starts, so what the first three rounds make of them is computed once, and a block of words costs
// `rounds` - 3 rounds.
template <int rounds, int rows, int vectors>
struct Draws {
    static constexpr u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    static constexpr int later = rounds - 3;
    u32 head_high, key1, key, column_low[vectors], lane[vectors];
    // Of 32 bits each, wide to be spread over lanes; rows are made as many as fill vectors.
    static constexpr int padded = (rows + lanes64 - 1) / lanes64 * lanes64;
    alignas(64) u64 c0[vectors][padded], c1[vectors][padded], c2[vectors][padded];
    u64 keys[later][2];

    explicit Draws(const WordPlace &place) {
        const u32 k0 = u32(place.key), k1 = u32(place.key >> 32);
        const u64 head = u64(m0) * place.head;
        head_high = u32(head >> 32);
        key1 = k1;
        key = k0 + w0;
        for (u32 r = 0; r < u32(later); ++r) {
            keys[r][0] = k0 + (r + 3) * w0;
            keys[r][1] = k1 + (r + 3) * w1;
        }
        for (int j = 0; j < vectors; ++j) {
            const u32 column = place.column + u32(j) * lanes32;
            const u64 block = u64(m1) * (column >> 4);
            column_low[j] = u32(block);
            lane[j] = (column & 15) >> 1;
            for (int i = 0; i < padded; i += lanes64) {
                const u64v row = lane_numbers(i) + u64(place.row);
                const u64v second = multiply_wide(row ^ u64((block >> 32) ^ k0), u64v{} + m0);
                const u64v third = multiply_wide((second >> 32) ^ u64(u32(head) ^ (k1 + w1)), u64v{} + m1);
                store(&c0[j][i], (third >> 32) ^ u64(k0 + 2 * w0));
                store(&c1[j][i], third);  // of this only the low half counts
                store(&c2[j][i], (second & 0xffffffffull) ^ u64(k1 + 2 * w1));
            }
        }
    }

    // Words for the groups whose counters end in c3: words[pair][row][vector]. Not inlined: the sums of a tile leave
    // no registers for it.
    __attribute__((noinline)) void words(u32 c3, u32v (&to)[2][rows][vectors]) const { make<true>(c3, to); }

    // The same for the first pair only.
    __attribute__((noinline)) void first_words(u32 c3, u32v (&to)[2][rows][vectors]) const { make<false>(c3, to); }

    // What the groups whose counters end in c3 bring to those of all rows.
    struct Block {
        u64v low[vectors], high[vectors], last[vectors];
    };
    LP_INLINE Block block(u32 c3) const {
        Block b;
        for (int j = 0; j < vectors; ++j) {
            const u64v first = (lane_numbers(0) + (c3 + lane[j])) ^ u64(head_high ^ key1);
            b.low[j] = multiply_wide(first, u64v{} + m1);
            b.last[j] = multiply_wide((b.low[j] >> 32) ^ u64(column_low[j] ^ key), u64v{} + m0);
            b.high[j] = b.last[j] >> 32;
        }
        return b;
    }

    // The words of the tile's vectors from number `base` on, of one pair or both: to[pair][vector].
    template <int pairs, int chains>
    LP_INLINE void some_words(const Block &b, int base, u32v (&to)[pairs][chains]) const {
        Counters c[chains];
        for (int n = 0; n < chains; ++n) {
            const int i = (base + n) / vectors, j = (base + n) % vectors;
            c[n].c0 = b.low[j] ^ c0[j][i];
            c[n].c1 = u64v{} + c1[j][i];
            c[n].c2 = b.high[j] ^ c2[j][i];
            c[n].c3 = b.last[j];
        }
        for (int r = 0; r < later - 1; ++r) round<pairs == 2>(c, keys[r], r == later - 2);
        for (int n = 0; n < chains; ++n) {
            to[0][n] = last_pair(multiply_wide(c[n].c2, u64v{} + m1), c[n].c1, keys[later - 1][0]);
            if constexpr (pairs == 2)
                to[1][n] = last_pair(multiply_wide(c[n].c0, u64v{} + m0), c[n].c3, keys[later - 1][1]);
        }
    }

  private:
    template <bool both>
    LP_INLINE void make(u32 c3, u32v (&to)[2][rows][vectors]) const {
        const Block b = block(c3);
        constexpr int all = rows * vectors, most = lanes64 == 8 ? 4 : 2, pairs = both ? 2 : 1;
        constexpr int chains = all % most == 0 ? most : all % 2 == 0 ? 2 : 1;
        for (int base = 0; base < all; base += chains) {
            u32v some[pairs][chains];
            some_words<pairs, chains>(b, base, some);
            for (int n = 0; n < chains; ++n)
                for (int p = 0; p < pairs; ++p) to[p][(base + n) / vectors][(base + n) % vectors] = some[p][n];
        }
    }

    template <bool both, int chains>
    LP_INLINE static void round(Counters (&c)[chains], const u64 (&k)[2], bool last_but_one) {
        for (int n = 0; n < chains; ++n) {
            const u64v a = multiply_wide(c[n].c0, u64v{} + m0), b = multiply_wide(c[n].c2, u64v{} + m1);
            if (both || !last_but_one) c[n].c0 = exclusive_or(b >> 32, c[n].c1, u64v{} + k[0]);
            c[n].c2 = exclusive_or(a >> 32, c[n].c3, u64v{} + k[1]);
            c[n].c1 = b;
            c[n].c3 = a;
        }
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
