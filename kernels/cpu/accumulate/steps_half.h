// Rounding a register tile to IEEE float16.
#ifndef LOWPREC_STEPS_HALF_H
#define LOWPREC_STEPS_HALF_H

#include "accumulate/steps.h"
#include "accumulate/tile_sizes.h"

namespace lowprec {
inline namespace LP_ISA {

template <int rows, int vectors>
LP_INLINE void round_whole(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], bool drawn, int shift,
                           const Rounders &k) {
    f32v copy[rows * vectors];
    u32v random[rows * vectors];
    for (int i = 0; i < rows * vectors; ++i) {
        copy[i] = tile[i / vectors][i % vectors];
        if (drawn)
            random[i] =
                k.whole_words() ? words[i / vectors][i % vectors] : (words[i / vectors][i % vectors] >> shift) & 0xffff;
    }
    round_tile(copy, drawn ? random : nullptr, rows * vectors, k);
    for (int i = 0; i < rows * vectors; ++i) tile[i / vectors][i % vectors] = copy[i];
}

#if defined(__F16C__)
LP_INLINE f32v through_half(f32v x) {
#if LP_VECTOR_BYTES == 64
    const __m256i half = _mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
    return (f32v)_mm512_maskz_cvtph_ps((__mmask16)-1, half);
#else
    const __m128i half = _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
    return (f32v)_mm256_cvtph_ps(half);
#endif
}

// IEEE float16 by the conversion instruction there and back; `checked`: with another policy than infinities.
template <bool checked>
struct HalfNearest {
    static constexpr bool active = true, random = false, alone = !checked, bounded = false;
    const Rounders &k;
    explicit HalfNearest(const Rounders &rounders) : k(rounders) {}
    LP_INLINE static f32v each(f32v x) { return through_half(x); }
    template <int rows, int vectors>
    LP_INLINE void round(f32v (&tile)[rows][vectors], const u32v (*words)[vectors], int) const {
        if (checked && __builtin_expect(beyond_or_nan(tile, 0x477fe000u), 0))  // 65504
            return round_whole(tile, words, false, 0, k);
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) tile[i][j] = through_half(tile[i][j]);
    }
};

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
// Products rounded one by one to float16, where products cannot be large.
struct HalfBounded : HalfNearest<false> {
    static constexpr bool bounded = true;
    explicit HalfBounded(const Rounders &rounders) : HalfNearest<false>(rounders) {}

    static Bound bound(i64 group, float largest_product) { return Bound(65504.0f, 11, group, largest_product, 128); }

    // Where no sum can overflow: adding and subtracting 2^13 times the sum's binade, which is 2^23 quanta, leaves whole
    // quanta in fewer cycles than the conversion takes. Zeros become +0.
    template <int rows, int vectors>
    LP_INLINE void round_bounded(f32v (&tile)[rows][vectors]) const {
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < vectors; ++j) {
                const f32v binade = bit_cast<f32v>(signed_binade(bit_cast<u32v>(tile[i][j]), bit_cast<u32>(0x1p-14f)));
                const f32v raised = fused(binade, splat_real(8192.0f), tile[i][j]);
                tile[i][j] = fused(binade, splat_real(-8192.0f), raised);
            }
    }
};
#endif
#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
