// Rounding a register tile of float32 sums in place: no rounding, fast paths, and any format through round.h.
//
// Every class here has `round(tile, words)`: tile[rows][vectors] is on the grid afterwards. `words` are the tile's
// random words where `random` is true. The fast paths compute exactly what round.h defines; values they do not cover
// (overflow, infinities, NaN) send the whole tile through round.h.
#ifndef LOWPREC_STEPS_H
#define LOWPREC_STEPS_H

#include "lanes.h"
#include "lowprec/random.h"
#include "product.h"

namespace lowprec {
inline namespace LP_ISA {

#if LP_VECTOR_BYTES == 64
constexpr int tile_rows = 8;  // with two vectors of columns: 16 of 32 registers
#elif defined(__AVX2__)
constexpr int tile_rows = 6;
#else
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors = 2, tile_columns = tile_vectors * lanes32, tile_floats = tile_rows * tile_columns;

// Where a tile lies, for its random words: the map of matmul (see lowprec.matmul).
struct Place {
    u64 key;
    u32 head;         // tag << 24 | batch
    u32 row, column;  // of the tile's first element; the column a multiple of lanes32
};

LP_INLINE u32v words_of_half(u32v words, int half) { return half ? words >> 16 : words & 0xffff; }

// Random words of a tile. The counter is (head, row, column block, group block | lane): all but the last are known
// before the chain starts, so what the first three rounds make of them is computed once, and a block of words costs
// `rounds` - 3 rounds.
template <int rounds, int rows, int vectors>
struct Draws {
    static constexpr u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    u32 head_high, key1, key, column_low[vectors], lane[vectors];
    // Of 32 bits each, wide to be spread over lanes; rows are made as many as fill vectors.
    static constexpr int padded = (rows + lanes64 - 1) / lanes64 * lanes64;
    alignas(64) u64 c0[vectors][padded], c1[vectors][padded], c2[vectors][padded];
    u64 later_key;

    explicit Draws(const Place &place) {
        const u32 k0 = u32(place.key), k1 = u32(place.key >> 32);
        const u64 head = u64(m0) * place.head;
        head_high = u32(head >> 32);
        key1 = k1;
        key = k0 + w0;
        later_key = u64(k0 + 3 * w0) | u64(k1 + 3 * w1) << 32;
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
                store(&c1[j][i], third & 0xffffffffull);
                store(&c2[j][i], (second & 0xffffffffull) ^ u64(k1 + 2 * w1));
            }
        }
    }

    // Words for the groups whose counters end in c3: words[pair][row][vector].
    LP_INLINE void words(u32 c3, u32v (&to)[2][rows][vectors]) const {
        u64v low[vectors], high[vectors], last[vectors];
        for (int j = 0; j < vectors; ++j) {
            const u64v first = (lane_numbers(0) + (c3 + lane[j])) ^ u64(head_high ^ key1);
            low[j] = multiply_wide(first, u64v{} + m1);
            last[j] = multiply_wide((low[j] >> 32) ^ u64(column_low[j] ^ key), u64v{} + m0);
            high[j] = last[j] >> 32;
        }
        constexpr int all = rows * vectors, chains = all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
        for (int base = 0; base < all; base += chains) {
            Counters c[chains];
            for (int n = 0; n < chains; ++n) {
                const int i = (base + n) / vectors, j = (base + n) % vectors;
                c[n].c0 = low[j] ^ c0[j][i];
                c[n].c1 = u64v{} + c1[j][i];
                c[n].c2 = high[j] ^ c2[j][i];
                c[n].c3 = last[j];
            }
            philox<rounds - 3>(c, later_key);
            for (int n = 0; n < chains; ++n) {
                const int i = (base + n) / vectors, j = (base + n) % vectors;
                to[0][i][j] = pair(c[n].c0, c[n].c1);
                to[1][i][j] = pair(c[n].c2, c[n].c3);
            }
        }
    }
};

// Any format of at most 13 mantissa bits and any mode, through round.h in 32-bit lanes.
template <int mode>
LP_INLINE f32v round_lane(f32v x, u32v random, const Rounder<u32> &k) {
    return bit_cast<f32v>(round_bits<mode, true>(bit_cast<u32v>(x), random, k));
}

inline f32v round_narrow(f32v x, u32v random, int mode, const Rounder<u32> &k) {
    switch (mode) {
        case nearest_away:
            return round_lane<nearest_away>(x, random, k);
        case toward_zero:
            return round_lane<toward_zero>(x, random, k);
        case up:
            return round_lane<up>(x, random, k);
        case down:
            return round_lane<down>(x, random, k);
        case odd:
            return round_lane<odd>(x, random, k);
        case stochastic:
            return round_lane<stochastic>(x, random, k);
        default:
            return round_lane<nearest_even>(x, random, k);
    }
}

template <int mode>
f32v round_wide_mode(f32v x, u32v random, int lift, const Rounder<u64> &k) {
    for (int i = 0; i < lanes32; ++i) {
        const u64 bits = round_bits<mode, true>(bit_cast<u64>(double(x[i])), u64(random[i]) << lift, k);
        x[i] = float(bit_cast<double>(bits));
    }
    return x;
}

// The same in 64-bit lanes: more mantissa bits, or more than 16 random bits.
inline f32v round_wide(f32v x, u32v random, int mode, int lift, const Rounder<u64> &k) {
    switch (mode) {
        case nearest_away:
            return round_wide_mode<nearest_away>(x, random, lift, k);
        case toward_zero:
            return round_wide_mode<toward_zero>(x, random, lift, k);
        case up:
            return round_wide_mode<up>(x, random, lift, k);
        case down:
            return round_wide_mode<down>(x, random, lift, k);
        case odd:
            return round_wide_mode<odd>(x, random, lift, k);
        case stochastic:
            return round_wide_mode<stochastic>(x, random, lift, k);
        default:
            return round_wide_mode<nearest_even>(x, random, lift, k);
    }
}

struct Rounders;
// Rounds `count` vectors in place; random words stand at `shift` of those given.
typedef void (*RoundVectors)(float *, const u32v *, int shift, i64 count, const Rounders &);
RoundVectors round_vectors_of(const Step &step);

// The constants of one rounding for every path.
struct Rounders {
    Rounder<u32> narrow;
    Rounder<u64> wide;
    int mode, is_wide, random_bits, active;
    RoundVectors apply;

    explicit Rounders(const Step &step)
        : mode(step.rounding.mode),
          is_wide(step.wide),
          random_bits(step.rounding.random_bits),
          active(step.active),
          apply(round_vectors_of(step)) {
        if (is_wide)
            wide = make_rounder<u64>(step.rounding, true);
        else if (active)
            narrow = make_rounder<u32>(step.rounding, true);
    }
    bool whole_words() const { return random_bits > 16; }
    f32v round(f32v x, u32v random) const {
        if (is_wide) return round_wide(x, random, mode, whole_words() ? 0 : 16, wide);
        return round_narrow(x, random, mode, narrow);
    }
};

// The definition at work: vectors one by one, whatever the mode. Not inlined into the kernels.
__attribute__((noinline)) inline void round_tile(f32v *tile, const u32v *words, i64 vectors, const Rounders &k) {
    for (i64 i = 0; i < vectors; ++i) tile[i] = k.round(tile[i], words ? words[i] : u32v{});
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
