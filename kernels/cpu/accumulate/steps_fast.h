// Fast rounding of register tiles for the formats that float32 arithmetic can round itself. Each step answers as
// round.h does; a tile with a value beyond the format's largest (or infinite, or NaN) goes through round.h whole.
#ifndef LOWPREC_STEPS_FAST_H
#define LOWPREC_STEPS_FAST_H

#include "accumulate/steps_half.h"

namespace lowprec {
inline namespace LP_ISA {

enum class Path {
    none,
    half_nearest,
    half_bounded,
    half_checked,
    grid_nearest,
    grid_stochastic,
    aligned_nearest,
    aligned_stochastic,
    any,
    any_random
};

// Which path serves a step.
inline Path path_of(const StepRounding &step) {
    if (!step.active) return Path::none;
    const Rounding &r = step.rounding;
    const bool random = r.mode == stochastic;
    if (!step.wide && is_top_of_float32(r)) return random ? Path::aligned_stochastic : Path::aligned_nearest;
    if (step.wide || !has_grid<u32>(r)) return random ? Path::any_random : Path::any;
#if defined(__F16C__)
    const Format &f = r.format;
    if (!random && f.mantissa_bits == 10 && f.emin == -14 && f.inf_code == 0x7c00)
        return r.over_pos == f.inf_code && r.inf_pos == f.inf_code ? Path::half_nearest : Path::half_checked;
#endif
    return random ? Path::grid_stochastic : Path::grid_nearest;
}

// A step rounds a whole tile. Where it can round each value alone, without looking at others, `each` does so. Where it
// is faster knowing that no sum overflows, `round_bounded` does that.
struct NoStep {
    static constexpr bool active = false, random = false, alone = false, bounded = false;
    explicit NoStep(const Rounders &) {}
    LP_INLINE static f32v each(f32v x) { return x; }
    template <int rows, int vectors>
    LP_INLINE void round(f32v (&)[rows][vectors], const u32v (*)[vectors], int) const {}
};

template <bool with_random>
struct AnyStep {
    static constexpr bool active = true, random = with_random, alone = false, bounded = false;
    const Rounders &k;
    explicit AnyStep(const Rounders &rounders) : k(rounders) {}
    template <int rows, int vectors>
    LP_INLINE void round(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift) const {
        round_whole(tile, words, with_random, shift, k);
    }
};

LP_INLINE f32v with_zero_sign(f32v rounded, f32v x, u32 zero_sign) {
    return bit_cast<f32v>(bit_cast<u32v>(rounded) | (bit_cast<u32v>(x) & zero_sign));
}

struct GridNearest {
    static constexpr bool active = true, random = false, alone = false, bounded = false;
    const Rounders &k;
    const Grid<u32> g;
    explicit GridNearest(const Rounders &rounders) : k(rounders), g(k.narrow) {}
    template <int rows, int vectors>
    LP_INLINE void round(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int) const {
        if (__builtin_expect(beyond_or_nan(tile, g.largest), 0)) return round_whole(tile, words, false, 0, k);
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j)
                tile[i][j] = bit_cast<f32v>(nearest_on_grid(bit_cast<u32v>(tile[i][j]), g));
    }
};

// Stochastic: the fraction of a quantum is cut to 16 bits, the random bits are added, the fraction is dropped.
struct GridStochastic {
    static constexpr bool active = true, random = true, alone = false, bounded = bounds_pay;
    static constexpr int steps = 8;  // roundings between two looks at how large, and how small, the sums are
    const Rounders &k;
    const Grid<u32> g;
    const struct AnySize {
        int unit, mask;
        float quanta, nearly;
        u32 smallest_normal, zero_sign;
    } any;  // see round_any
    explicit GridStochastic(const Rounders &rounders) : k(rounders), g(k.narrow), any(any_size(g)) {}

    static AnySize any_size(const Grid<u32> &g) {
        const u32 unit = u32(127 - g.mantissa_bits) << 23;
        return {int(unit),
                int(g.random_mask << 7),
                bit_cast<float>(unit + (23u << 23)),
                bit_cast<float>(unit + (22u << 23) + 0x7ffffeu),
                g.smallest_normal,
                g.zero_sign};
    }

    template <int rows, int vectors>
    LP_INLINE void round(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift) const {
        const Sizes sizes = sizes_of(tile, g.smallest_normal, g.largest);
        if (__builtin_expect(sizes == Sizes::beyond, 0)) return round_whole(tile, words, true, shift, k);
        if (sizes == Sizes::normal && g.zero_sign != 0) return round_normal(tile, words, shift);
        round_any(tile, words, shift);
    }

    Bound bound(i64 group, float largest_product) const {  // the sums of a group lose far less than half a digit
        return Bound(bit_cast<float>(g.largest), g.mantissa_bits - 1, group, largest_product, steps);
    }

    // Where no sum can overflow. `tiny`: so many times more the way for any size is taken without a look.
    template <int rows, int vectors>
    LP_INLINE void round_bounded(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift,
                                 int &tiny) const {
        if (tiny == 0 && any_smaller(tile, bit_cast<float>(g.smallest_normal)) && any_tiny(tile, g.smallest_normal))
            tiny = steps;
        if (tiny == 0 && g.zero_sign != 0) return round_normal(tile, words, shift);
        tiny -= tiny > 0;
        round_any(tile, words, shift);
    }

    // Zeros and normal values: the grid's fraction bits are the last ones of the float32.
    template <int rows, int vectors>
    LP_INLINE void round_normal(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift) const {
        const int drop = g.drop, turn = shift + 16 - drop;
        const u32 take = drop >= 16 ? g.random_mask << (drop - 16) : g.random_mask >> (16 - drop);
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) {
                const u32v up = (turn >= 0 ? words[i][j] >> turn : words[i][j] << -turn) & take;
                tile[i][j] = bit_cast<f32v>(stochastic_on_grid(bit_cast<u32v>(tile[i][j]), up, g));
            }
    }

    template <int rows, int vectors>
    LP_INLINE void round_any(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift) const {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
        // x + quantum * (1 + r / 2^16), cut towards zero, then to whole quanta, with 2^23 - 1 more; cuts of nested
        // grids compose. Quanta have the value's sign, so cutting towards zero is the floor of the magnitude. A quantum
        // is its binade times 2^-mantissa_bits.
        const AnySize *k = &any;
        // Opaque, so that these are read here, and do not take the registers in which sums stand on other ways.
        __asm__ volatile("" : "+r"(k));
        const __m512i turn = _mm512_set1_epi32(shift ? 23 : 7), mask = _mm512_set1_epi32(k->mask);
        const __m512i one = _mm512_set1_epi32(k->unit);
        const __m512 quanta = _mm512_set1_ps(k->quanta), nearly = _mm512_set1_ps(k->nearly);
        const u32 smallest_normal = k->smallest_normal, zero_sign = k->zero_sign;
        constexpr int cut = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) {
                const __m512 x = (__m512)tile[i][j];
                const __m512i turned = _mm512_rolv_epi32((__m512i)words[i][j], turn);
                const __m512 factor = (__m512)_mm512_ternarylogic_epi32(turned, mask, one, 0xea);  // (a & b) | c
                const __m512 binade = (__m512)signed_binade(bit_cast<u32v>(tile[i][j]), smallest_normal);
                const __m512 sum = _mm512_fmadd_round_ps(binade, factor, x, cut);
                const __m512 whole = _mm512_fmadd_round_ps(binade, nearly, sum, cut);
                const f32v rounded = (f32v)_mm512_fnmadd_ps(binade, quanta, whole);
                tile[i][j] = with_zero_sign(rounded, tile[i][j], zero_sign);
            }
#else
        const u32 up_field = u32(254 + 16 + g.mantissa_bits) << 23;  // field of 2^(16 + mantissa) / 2^e, less e's
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) {
                const u32v size = bit_cast<u32v>(tile[i][j]) & 0x7fffffffu;
                const u32v binade = larger(size & 0x7f800000u, u32v{} + g.smallest_normal);
                const f32v fixed = bit_cast<f32v>(size) * bit_cast<f32v>(up_field - binade);
                const u32v random = (words[i][j] >> shift) & g.random_mask;
                const u32v whole = ((u32v) __builtin_convertvector(fixed, i32v) + random) & 0xffff0000u;
                const f32v quantum = bit_cast<f32v>(binade - (u32(16 + g.mantissa_bits) << 23));
                const f32v rounded = __builtin_convertvector((i32v)whole, f32v) * quantum;
                const u32v sign = bit_cast<u32v>(tile[i][j]) & 0x80000000u;
                const u32v kept = whole == 0 ? sign & g.zero_sign : sign;
                tile[i][j] = bit_cast<f32v>(bit_cast<u32v>(rounded) | kept);
            }
#endif
    }
};

// bfloat16 and its like: the code is the top of the float32's bits, subnormals included.
template <bool with_random>
struct AlignedStep {
    static constexpr bool active = true, random = with_random, alone = false, bounded = false;
    const Rounders &k;
    const Grid<u32> g;
    explicit AlignedStep(const Rounders &rounders) : k(rounders), g(k.narrow) {}
    template <int rows, int vectors>
    LP_INLINE void round(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int shift) const {
        if (__builtin_expect(beyond(tile, g.largest), 0)) return round_whole(tile, words, with_random, shift, k);
        const int drop = g.drop;
        const u32 half = (1u << (drop - 1)) - 1;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) {
                const u32v x = bit_cast<u32v>(tile[i][j]);
                u32v up;
                if (with_random) {
                    const u32v r = (words[i][j] >> shift) & g.random_mask;
                    up = drop >= 16 ? r << (drop - 16) : r >> (16 - drop);
                } else {
                    up = ((x >> drop) & 1) + half;
                }
                tile[i][j] = bit_cast<f32v>(stochastic_on_grid(x, up, g));
            }
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
