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
constexpr int most_vectors = 4;  // of a tile of one row, whose chains would wait for their additions

// The constants of one rounding for every path.
struct Rounders {
    Rounder<u32> narrow;
    Rounder<u64> wide;
    int mode, is_wide, random_bits, active;
    // Rounds `count` vectors in place; random words stand at `shift` of those given.
    void (*apply)(float *, const u32v *, int shift, i64 count, const Rounders &);

    explicit Rounders(const StepRounding &step);
    bool whole_words() const { return random_bits > 16; }
};

// The definition at work: vectors one by one, whatever the mode.
void round_tile(f32v *tile, const u32v *words, i64 vectors, const Rounders &k);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
