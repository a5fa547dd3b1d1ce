// Stochastic rounding to float16 on AVX-512: vectors of results of any size, and what is left over of panels of which
// most results are sure and normal numbers.
#ifndef LOWPREC_ANY_HALVES_H
#define LOWPREC_ANY_HALVES_H

#include "elementwise/open_halves.h"
#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

constexpr int panels_at_once = 16;

// All results, whatever they are; returns those too near to a code to be sure, of the two vectors' lanes in turns.
struct AnyHalves {
    __m512i clamp, least, start, upper_words, odd;

    explicit AnyHalves(const HalfRounding &k) {
        alignas(64) u8 from[64];
        alignas(64) u16 places[32];
        for (int i = 0; i < 64; ++i) from[i] = u8((i & 12) + 2 + (i & 1));
        for (int i = 0; i < 32; ++i) places[i] = u16(2 * i + 1);
        clamp = _mm512_set1_epi32(int(k.clamp));
        least = _mm512_set1_epi32(int(least_half));
        start = _mm512_set1_epi32(int(code_start));
        upper_words = _mm512_load_si512(from);
        odd = _mm512_load_si512(places);
    }

    LP_INLINE __m512i place_of(__m512 x) const {
        const __m512 size = _mm512_range_ps(x, (__m512)clamp, 2 | 8);  // least magnitude, sign cleared
        const __mmask16 small = _mm512_cmp_ps_mask(size, (__m512)least, _CMP_LT_OQ);
        const __m512i count = _mm512_cvttps_epi32(_mm512_mul_ps(size, _mm512_set1_ps(per_quantum)));
        return _mm512_mask_sub_epi32(_mm512_slli_epi32((__m512i)size, 3), small, count, start);
    }

    template <class Operation>
    LP_INLINE u32 round(const char *a, const char *b, const char *c, u32v random, char *to) const {
        constexpr u32 margin = place * margin_of(Operation::steps);
        const __m512 x0 = real_halves<Operation>(a, b, c), x1 = real_halves<Operation>(a + 32, b + 32, c + 32);
        const __m512i words = (__m512i)random;
        const __m512i sum0 = _mm512_add_epi32(place_of(x0), _mm512_mask_blend_epi16(0x55555555, start, words));
        const __m512i sum1 =
            _mm512_add_epi32(place_of(x1), _mm512_mask_shuffle_epi8(start, 0x3333333333333333ull, words, upper_words));
        const __m512i sign = _mm512_set1_epi32(int(0x80000000u));
        const __m512i code0 = _mm512_ternarylogic_epi32(sign, (__m512i)x0, sum0, 0xCA);  // x where `sign` is set
        const __m512i code1 = _mm512_ternarylogic_epi32(sign, (__m512i)x1, sum1, 0xCA);
        const u32 none = _mm512_cmp_ps_mask(x0, x0, _CMP_UNORD_Q) | u32(_mm512_cmp_ps_mask(x1, x1, _CMP_UNORD_Q)) << 16;
        const __m512i codes = _mm512_permutex2var_epi16(code0, odd, code1);
        _mm512_storeu_si512(to, _mm512_mask_blend_epi16(none, codes, _mm512_set1_epi16(0x7e00)));
        if (!margin) return 0;
        const __m512i far = _mm512_set1_epi32(int(0xffffu & ~(2 * margin - 1))), more = _mm512_set1_epi32(int(margin));
        const __mmask16 open0 = _mm512_mask_testn_epi32_mask(~none, _mm512_add_epi32(sum0, more), far);
        const __mmask16 open1 = _mm512_mask_testn_epi32_mask(~(none >> 16), _mm512_add_epi32(sum1, more), far);
        return _pdep_u32(open0, 0x55555555u) | _pdep_u32(open1, 0xaaaaaaaau);
    }

    template <class Operation>
    static LP_INLINE __m512 real_halves(const char *a, const char *b, const char *c) {
        return (__m512)Operation::of(half_to_real(load<u16v>(a)), half_to_real(load<u16v>(b)),
                                     half_to_real(load<u16v>(c)));
    }
};

// Of each pair of vectors of some panels, of the two vectors' lanes in turns, those too near to a code.
struct OpenLanes {
    alignas(64) u32 of_pair[8 * panels_at_once];
};

// Notes the open lanes of `panels` panels, whose words are `random`, and settles them where there are many.
template <class Operation>
void note_open(const char *const *from, const PanelWords *random, const OpenLanes &lanes, int panels, char *to,
               OpenHalves<Operation> &open, const HalfRounding &rounding) {
    for (int first = 0; first < 8 * panels; first += lanes32) {
        u32 pairs = lanes_set(load<u32v>(lanes.of_pair + first)) & (8 * panels - first < lanes32 ? 0xffu : 0xffffu);
        for (; pairs; pairs &= pairs - 1) {
            const int pair = first + __builtin_ctz(pairs);
            for (u32 left = lanes.of_pair[pair]; left; left &= left - 1) {
                const int lane = __builtin_ctz(left) / 2, second = __builtin_ctz(left) % 2;
                const u32 both = reinterpret_cast<const u32 *>(random)[16 * pair + lane];
                open.note(from, 32 * pair + 16 * second + lane, both >> (16 * second), to);
            }
            open.settle(open.most, rounding);
        }
    }
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
