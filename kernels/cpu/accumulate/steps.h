// Rounding a register tile of float32 sums in place: no rounding, fast paths, and any format through round.h.
//
// Every class here has `round(tile, words)`: tile[rows][vectors] is on the grid afterwards. `words` are the tile's
// random words where `random` is true. The fast paths compute exactly what round.h defines; values they do not cover
// (overflow, infinities, NaN) send the whole tile through round.h.
#ifndef LOWPREC_STEPS_H
#define LOWPREC_STEPS_H

#include "accumulate/accumulation.h"
#include "accumulate/tile_words.h"

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
RoundVectors round_vectors_of(const StepRounding &step);

// The constants of one rounding for every path.
struct Rounders {
    Rounder<u32> narrow;
    Rounder<u64> wide;
    int mode, is_wide, random_bits, active;
    RoundVectors apply;

    explicit Rounders(const StepRounding &step)
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
