// Tiles whose results go straight to where they lie.
#include "isa/fast_paths.h"
#include "product/quick_tiles.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64

LP_INLINE void put(char *to, f32v x, i64 count) {
    x = with_one_nan(x);
    if (count >= lanes32)
        store(to, x);
    else if (count > 0)
        store_some(to, x, count);
}

LP_INLINE void put(char *to, u16v x, i64 count) {
    if (count >= lanes32)
        store(to, x);
    else if (count > 0)
        store_some(to, x, count);
}

// Sums without rounding, as float32; or rounded to float16, the last time by being stored.
struct AsReal {
    static constexpr int bytes = 4;
    LP_INLINE static f32v between(f32v x) { return x; }
    LP_INLINE static f32v last(f32v x) { return x; }
};
struct AsHalf {
    static constexpr int bytes = 2;
    LP_INLINE static f32v between(f32v x) { return through_half(x); }
    LP_INLINE static u16v last(f32v x) { return real_to_half(with_one_nan(x)); }
};

template <class As, int rows, int vectors>
LP_INLINE void nearest_rows(const Chain &c, const float *a, const float *b, i64 columns, char *to, long to_row) {
    f32v tile[rows][vectors] = {};
    for (i64 k = 0; k < c.count;) {
        for (const i64 stop = c.group < c.count - k ? k + c.group : c.count; k < stop; ++k)
            add_products<NoStep, rows, vectors, false>(c, a, b, k, tile);
        if (k == c.count) break;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) tile[i][j] = As::between(tile[i][j]);
    }
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j)
            put(to + i * to_row + j * lanes32 * As::bytes, As::last(tile[i][j]), columns - j * lanes32);
}

template <class As, int vectors>
bool nearest_tile(const Chain &c, const Rounders &, const float *a, const float *b, int rows, i64 columns, char *to,
                  long to_row) {
    for (; rows >= tile_rows; rows -= tile_rows, a += tile_rows * c.a_row, to += tile_rows * to_row)
        nearest_rows<As, tile_rows, vectors>(c, a, b, columns, to, to_row);
    for (; rows >= 2; rows -= 2, a += 2 * c.a_row, to += 2 * to_row)
        nearest_rows<As, 2, vectors>(c, a, b, columns, to, to_row);
    if (rows) nearest_rows<As, 1, vectors>(c, a, b, columns, to, to_row);
    return true;
}

// Sums of one group in one vector of columns, rounded stochastically as they are stored: normal sums and zeros. Random
// words are made for a few rows at a time, beside the products of the next.
class RandomRows {
  public:
    RandomRows(const Chain &chain, const WordPlace &place, const Rounders &rounders, i64 stored)
        : c(chain), grid(rounders.narrow), columns(stored), draws(place), block(draws.block(0)) {}

    template <int rows>
    LP_INLINE void add(const float *a, const float *b, int row, char *to, long to_row) {
        const int turn = 16 - grid.drop;
        const u32 take = grid.random_mask >> turn;
        f32v tile[rows][1] = {};
        u32v words[1][rows];
        draws.some_words<1, rows>(block, row, words);
        for (i64 k = 0; k < c.count; ++k) add_products<NoStep, rows, 1, false>(c, a, b, k, tile);
        for (int i = 0; i < rows; ++i) {
            const u32v bits = bit_cast<u32v>(tile[i][0]), twice = bits + bits;
            high = larger(high, twice);
            low = smaller(low, twice - 1);  // zeros become the largest number
            const __m512 up = (__m512)(bits + ((words[0][i] >> turn) & take));
            put(to + i * to_row, (u16v)_mm512_maskz_cvtps_ph((__mmask16)-1, up, _MM_FROUND_TO_ZERO), columns);
        }
    }

    bool good() const {
        return !any_below(low, 2 * grid.smallest_normal - 1) && !any_below(~high, ~(2 * grid.largest));
    }

  private:
    const Chain &c;
    const Grid<u32> grid;
    const i64 columns;
    const Draws<7, quick_rows, 1> draws;
    const Draws<7, quick_rows, 1>::Block block;
    u32v low = ~u32v{}, high = {};
};

template <int vectors>
bool random_tile(const Chain &c, const Rounders &rounders, const float *a, const float *b, int rows, i64 columns,
                 char *to, long to_row) {
    WordPlace place = c.place;
    bool good = true;
    for (int j = 0; j < vectors; ++j, b += lanes32, to += 2 * lanes32, columns -= lanes32, place.column += lanes32) {
        RandomRows sums(c, place, rounders, columns);
        int i = 0;
        for (; i + 4 <= rows; i += 4) sums.add<4>(a + i * c.a_row, b, i, to + i * to_row, to_row);
        for (; i < rows; ++i) sums.add<1>(a + i * c.a_row, b, i, to + i * to_row, to_row);
        good &= sums.good();
    }
    return good;
}

#endif

}  // namespace

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
QuickTile quick_tile(Path path, const ProductJob &job, const Store &keep, int vectors) {
    const Destination &out = job.out;
    if (!takes(FastPath::quick_tiles) || job.adder != Adder::sequential || job.k == 0 || job.k > job.part ||
        job.stages > 1 || job.final.active || job.initial.data || out.nan_met || out.column != out.item_bytes)
        return nullptr;
    if (path == Path::none && out.storage == real32)
        return vectors == 1 ? nearest_tile<AsReal, 1> : nearest_tile<AsReal, 2>;
    if (path == Path::half_nearest && keep.half)
        return vectors == 1 ? nearest_tile<AsHalf, 1> : nearest_tile<AsHalf, 2>;
    const Rounding &r = job.step.rounding;
    const bool to_half = keep.half && r.format.mantissa_bits == 10 && r.format.emin == -14 && r.format.negative_zero;
    if (path == Path::grid_stochastic && to_half && job.k <= job.group && r.random_bits <= 16)
        return vectors == 1 ? random_tile<1> : random_tile<2>;
    return nullptr;
}
#else
QuickTile quick_tile(Path, const ProductJob &, const Store &, int) { return nullptr; }
#endif

}  // namespace LP_ISA
}  // namespace lowprec
