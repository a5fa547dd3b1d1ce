// How large the values of a register tile are: where all are moderate, a step may round them in a shorter way.
#ifndef LOWPREC_TILE_SIZES_H
#define LOWPREC_TILE_SIZES_H

#include "isa/lanes.h"
#include "lowprec/round_grid.h"

namespace lowprec {
inline namespace LP_ISA {

template <int rows, int vectors>
LP_INLINE bool beyond(const f32v (&tile)[rows][vectors], u32 largest) {
    u32v top = {};
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) top = larger(top, bit_cast<u32v>(tile[i][j]) & 0x7fffffffu);
    return any_set((u32v)(top > largest));
}

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
// The value of a tile that vrangeps chooses, and `start`: four chains side by side, for each comparison waits for the
// one before it.
template <int how, int rows, int vectors>
LP_INLINE __m512 range_of(const f32v (&tile)[rows][vectors], __m512 start) {
    __m512 chosen[4] = {start, start, start, start};
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) {
            __m512 &chain = chosen[(i * vectors + j) % 4];
            chain = _mm512_range_ps(chain, (__m512)tile[i][j], how);
        }
    return _mm512_range_ps(_mm512_range_ps(chosen[0], chosen[1], how), _mm512_range_ps(chosen[2], chosen[3], how), how);
}
#endif

// The same for steps that keep NaN as it is.
template <int rows, int vectors>
LP_INLINE bool beyond_or_nan(const f32v (&tile)[rows][vectors], u32 largest) {
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
    const __m512 top = range_of<11>(tile, _mm512_setzero_ps());  // the larger magnitude, unsigned; NaN never wins
    return _mm512_cmp_ps_mask(top, _mm512_set1_ps(bit_cast<float>(largest)), _CMP_GT_OQ) != 0;
#else
    return beyond(tile, largest);
#endif
}

LP_INLINE bool any_below(u32v values, u32 bound) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return _mm512_cmplt_epu32_mask((__m512i)values, _mm512_set1_epi32(int(bound))) != 0;
#else
    return any_set((u32v)(values < bound));
#endif
}

// The smallest magnitude of a tile is less than `bound`.
template <int rows, int vectors>
LP_INLINE bool any_smaller(const f32v (&tile)[rows][vectors], float bound) {
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
    const __m512 low = range_of<10>(tile, _mm512_set1_ps(bound));  // the smaller magnitude, unsigned
    return _mm512_cmp_ps_mask(low, _mm512_set1_ps(bound), _CMP_LT_OQ) != 0;
#else
    u32v low = u32v{} + bit_cast<u32>(bound);
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) low = smaller(low, bit_cast<u32v>(tile[i][j]) & 0x7fffffffu);
    return any_below(low, bit_cast<u32>(bound));
#endif
}

// Whether kernels that know how large products can be are faster: they want 32 registers.
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
constexpr bool bounds_pay = true;
#else
constexpr bool bounds_pay = false;
#endif

// How large sums may be so that `steps` roundings later none can have overflowed. A step adds `group` products and
// rounds, by which a sum grows by at most 2^-digits of itself; what the float32 roundings of a long group add is left
// out, so such groups have no bound.
struct Bound {
    i64 steps;
    float start;  // negative or NaN: not even zeros

    Bound(float largest, int digits, i64 group, float largest_product, i64 count)
        : steps(count),
          start(group > 1024 ? -1 : largest * (1 - count * power_of_two(-digits)) - count * group * largest_product) {}

    template <int rows, int vectors>
    LP_INLINE bool holds(const f32v (&tile)[rows][vectors]) const {
        return start >= 0 && !beyond(tile, bit_cast<u32>(start));
    }

    static float power_of_two(int e) { return bit_cast<float>(u32(127 + e) << 23); }
};

// Some value is smaller than the format's normal numbers and not zero.
template <int rows, int vectors>
LP_INLINE bool any_tiny(const f32v (&tile)[rows][vectors], u32 smallest_normal) {
    u32v low = ~u32v{};
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j)  // without its sign, and zeros become the largest number
            low = smaller(low, bit_cast<u32v>(tile[i][j]) + bit_cast<u32v>(tile[i][j]) - 1);
    return any_below(low, 2 * smallest_normal - 1);
}

enum class Sizes { normal, tiny, beyond };

// Whether every value of a tile is zero or a normal value of the format, some are smaller, or some are beyond it.
template <int rows, int vectors>
LP_INLINE Sizes sizes_of(const f32v (&tile)[rows][vectors], u32 smallest_normal, u32 largest) {
    u32v low = ~u32v{}, high = {};
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < vectors; ++j) {
            const u32v twice = bit_cast<u32v>(tile[i][j]) + bit_cast<u32v>(tile[i][j]);  // without its sign
            low = smaller(low, twice);
            high = larger(high, twice);
        }
    if (__builtin_expect(any_below(~high, ~(2 * largest)), 0)) return Sizes::beyond;
    return any_below(low, 2 * smallest_normal) && any_tiny(tile, smallest_normal) ? Sizes::tiny : Sizes::normal;
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
