// What happens to a tile's sums after the chains.
#include "accumulate/finish.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

// A block of sums rounded with random words of Philox-10, those of one pair of `c3`'s.
template <int rows, int vectors>
LP_INLINE void round_block(float *sums, const Rounders &k, const WordPlace &place, u32 c3, int pair_number, int shift) {
    u32v words[2][rows][vectors];
    const Draws<10, rows, vectors> draws(place);
    pair_number ? draws.words(c3, words) : draws.first_words(c3, words);
    k.apply(sums, &words[pair_number][0][0], shift, rows * vectors, k);
}

}  // namespace

void round_rows(float *sums, i64 rows, i64 vectors, const Rounders &k, WordPlace place, int tag, u32 index) {
    const bool random = k.mode == stochastic, wide = k.whole_words();
    if (!random) return k.apply(sums, nullptr, 0, rows * vectors, k);
    place.head = (place.head & 0xffffffu) | (u32(tag + (wide ? 1 : 0)) << 24);
    const u32 c3 = wide ? (index >> 1) << 3 : (index >> 2) << 3;
    const int pair_number = wide ? index & 1 : (index >> 1) & 1, shift = wide ? 0 : int(index & 1) * 16;
    if (rows == tile_rows && vectors == tile_vectors)
        return round_block<tile_rows, tile_vectors>(sums, k, place, c3, pair_number, shift);
    if (rows == tile_rows && vectors == 1) return round_block<tile_rows, 1>(sums, k, place, c3, pair_number, shift);
    const u32 row = place.row, column = place.column;
    for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < vectors; ++j) {
            place.row = row + u32(i);
            place.column = column + u32(j) * lanes32;
            round_block<1, 1>(sums + (i * vectors + j) * lanes32, k, place, c3, pair_number, shift);
        }
}

void take_part(float *part, TileSums &sums, i64 p, i64 rows, i64 vectors, const Stages &s, const Rounders &between,
               const WordPlace &place) {
    take_part(part, sums[0], tile_floats + lanes32, p, rows * vectors * lanes32, s, [&](float *at, u32 index) {
        if (between.active) round_rows(at, rows, vectors, between, place, tag_stage, index);
    });
}

}  // namespace LP_ISA
}  // namespace lowprec
