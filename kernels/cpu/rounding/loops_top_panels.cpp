// Rounding panels with the codes at the top of their lanes (top_lanes.h).
#include "rounding/top_lanes.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
namespace {

constexpr int ahead = 1024;  // elements between a load and the prefetch beside it

// Keeps the values, which gcc would load again for every use, and the prefetches at their places.
LP_INLINE void load_pair(const u32 *at, __m512i &x0, __m512i &x1) {
    x0 = _mm512_loadu_si512(at), x1 = _mm512_loadu_si512(at + 16);
    __asm__ volatile("prefetcht0 %2\n\tprefetcht0 %3" : "+v"(x0), "+v"(x1) : "m"(at[ahead]), "m"(at[ahead + 16]));
}

// The upper halves of two vectors' lanes.
LP_INLINE __m512i upper_halves(__m512i a, __m512i b, __m512i odd) { return _mm512_permutex2var_epi16(a, odd, b); }

// The upper bytes of a vector's lanes, four at a time, to place `part` of each four lanes of `to`.
template <int part>
LP_INLINE __m512i upper_bytes(__m512i to, __m512i from) {
    return _mm512_mask_shuffle_epi8(to, 0x000f000f000f000full << (4 * part), from, _mm512_set1_epi32(0x0f0b0703));
}

// Whether a nonzero value of the panel lies below `smallest`.
bool any_subnormal(const u32 *from, u32 smallest) {
    __mmask16 found = 0;
    for (int i = 0; i < panel; i += lanes32) {
        const __m512i x = _mm512_loadu_si512(from + i), less = _mm512_set1_epi32(1);
        const __m512i magnitude = _mm512_and_si512(x, constant(0x7fffffffu));
        found |= _mm512_cmplt_epu32_mask(_mm512_sub_epi32(magnitude, less), constant(smallest - 1));
    }
    return found != 0;
}

// What a panel needs beside its constants.
struct Picks {
    __m512i odd, kept, normal;
};

LP_INLINE Picks make_picks(const TopRounder &k) {
    alignas(64) u16 odd[32];
    for (int i = 0; i < 32; ++i) odd[i] = u16(2 * i + 1);
    return {_mm512_load_si512(odd), constant(k.random_mask), constant(k.normal)};
}

enum Found { nothing, subnormals, not_plain };  // for the fallback; not plain may be NaN

template <class Out, class Shape, bool whole = false>
LP_INLINE Found round_panel(const u32 *from, const u32v (&random)[8], char *to, const Constants &k, const Picks &picks,
                            const TopRounder &rounder) {
    __mmask16 plain = 0xffff;
    __mmask32 large = ~__mmask32(0);
    __m512i bytes = {};
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; ++pair) {
        const u32 *at = from + 32 * pair;
        __m512i x0, x1;
        load_pair(at, x0, x1);
        __m512i words = {};
        if (Shape::mode == stochastic) words = _mm512_and_si512((__m512i)random[pair], picks.kept);
        __m512i first, second;
        if constexpr (to_nearest_byte<Out, Shape>) {
            first = nearest_byte<Shape>(x0, k, plain);
            second = nearest_byte<Shape>(x1, k, plain);
        } else {
            first = round_at_top<Out, Shape, 0, whole>(x0, words, k, plain);
            second = round_at_top<Out, Shape, 1, whole>(x1, words, k, plain);
        }
        if (Shape::end == symmetric) plain = _mm512_mask_cmp_ps_mask(plain, (__m512)x0, (__m512)x1, _CMP_ORD_Q);
        if constexpr (sizeof(Out) == 2) {
            const __m512i both = upper_halves(first, second, picks.odd);
            if (Shape::mode == stochastic && Shape::way == scaled && !whole)
                large = _mm512_mask_test_epi16_mask(large, both, picks.normal);
            _mm512_storeu_si512(to + 64 * pair, both);
        } else if (pair % 2 == 0) {
            bytes = upper_bytes<1>(upper_bytes<0>(bytes, first), second);
        } else {
            bytes = upper_bytes<3>(upper_bytes<2>(bytes, first), second);
            const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_storeu_si512(to + 32 * (pair - 1), _mm512_permutexvar_epi32(order, bytes));
        }
    }
    if (__builtin_expect(plain != 0xffff, 0)) return not_plain;
    if (__builtin_expect(large == ~__mmask32(0), 1) || !rounder.normal) return nothing;
    return any_subnormal(from, rounder.smallest) ? subnormals : nothing;
}

// Half-words one to a lane, in the order of the elements.
void spread(const PanelWords &words, u32 *to) {
    for (int pair = 0; pair < 8; ++pair) {
        const __m512i w = (__m512i)words.words[pair];
        _mm512_store_si512(to + 32 * pair, _mm512_and_si512(w, constant(0xffffu)));
        _mm512_store_si512(to + 32 * pair + 16, _mm512_srli_epi32(w, 16));
    }
}

// Not inlined, so that the words of the panels that do not need it stay in registers.
[[gnu::noinline]] void fall_back(const u32 *from, char *to, u64 block, const RandomBlocks &random,
                                 const TopRounder &rounder) {
    PanelWords words;
    if (rounder.stochastic) random.fill(block, words);
    if (rounder.fast) return rounder.fast(from, words, to, rounder.fast_rounder);
    alignas(64) u32 half_words[panel];
    if (rounder.stochastic) spread(words, half_words);
    rounder.general(from, half_words, to, panel, *rounder.rounder);
}

// Panels with all their subnormals, where codes of 16 bits have them beside as many random bits. Not inlined, as above.
template <class Out, class Shape>
constexpr bool has_whole = Shape::mode == stochastic && sizeof(Out) == 2 && Shape::full && Shape::negative_zero;

template <class Out, class Shape>
[[gnu::noinline]] Found round_whole(const u32 *from, char *to, u64 block, const RandomBlocks &random,
                                    const TopRounder &rounder) {
    PanelWords made;
    const PanelWords *words = random.kept_words(block);
    if (!words) random.fill(block, made);
    u32v lanes[8];
    __builtin_memcpy(lanes, words ? words : &made, sizeof lanes);
    return round_panel<Out, Shape, true>(from, lanes, to, make_constants<Out>(rounder), make_picks(rounder), rounder);
}

template <class Out, class Shape>
bool run(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random, const TopRounder &rounder) {
    const Constants k = make_constants<Out>(rounder);
    const Picks picks = make_picks(rounder);
    char *out = static_cast<char *>(to);
    bool plain = true, small = false;
    for (; panels > 0; --panels, from += panel, out += panel * sizeof(Out), block += 4) {
        Found found = not_plain;
        small = small && any_subnormal(from, rounder.smallest);  // where one panel has some the next is likely to
        if (!small && (Shape::mode != stochastic || __builtin_expect(are_near(random.near, block, 4), 1))) {
            u32v words[8] = {};
            if (Shape::mode == stochastic) block_words<4>(block, random.near, words);
            found = round_panel<Out, Shape>(from, words, out, k, picks, rounder);
        }
        if constexpr (has_whole<Out, Shape>) {
            small |= found == subnormals;
            if (small) found = round_whole<Out, Shape>(from, out, block, random, rounder);
        }
        if (__builtin_expect(found != nothing, 0)) fall_back(from, out, block, random, rounder);
        plain &= found != not_plain;
    }
    return plain;
}

// ---- float16 and bfloat16, stochastically ----
//
// Random bits added to the float32's own bits, below what the code shows of them, and the rest cut off: so are all
// rounded but what is not a number, overflows, or is subnormal in float16.

// Whether all of a panel is surely rounded so.
template <int way>
LP_INLINE bool round_own_layout(const u32 *from, const u32v (&random)[8], char *to, const Picks &picks) {
    const __m256i beside_normal = _mm256_set1_epi16(0x401), exponent = _mm256_set1_epi16(0x7000);
    __mmask16 usual0 = 0xffff, usual1 = 0xffff;
    __m512i largest = {};
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; ++pair) {
        const u32 *at = from + 32 * pair;
        __m512i x0, x1;
        load_pair(at, x0, x1);
        const __m512i words = (__m512i)random[pair];
        constexpr int shift = way == scaled ? 3 : 0;
        const __m512i sum0 = _mm512_add_epi32(x0, _mm512_maskz_srli_epi16(0x55555555, words, shift));
        const __m512i sum1 = _mm512_add_epi32(x1, _mm512_srli_epi32(words, 16 + shift));
        if (way == scaled) {
            const __m256i code0 = _mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)sum0, _MM_FROUND_TO_ZERO);
            const __m256i code1 = _mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)sum1, _MM_FROUND_TO_ZERO);
            _mm256_storeu_si256((__m256i *)(to + 64 * pair), code0);
            _mm256_storeu_si256((__m256i *)(to + 64 * pair + 32), code1);
            // Below 2^-12, and from the largest on, NaN among them.
            usual0 = _mm256_mask_test_epi16_mask(usual0, _mm256_add_epi16(code0, beside_normal), exponent);
            usual1 = _mm256_mask_test_epi16_mask(usual1, _mm256_add_epi16(code1, beside_normal), exponent);
        } else {
            const __m512i codes = upper_halves(sum0, sum1, picks.odd);
            _mm512_storeu_si512(to + 64 * pair, codes);
            usual0 = _mm512_mask_cmp_ps_mask(usual0, (__m512)x0, (__m512)x1, _CMP_ORD_Q);
            largest = _mm512_max_epu16(largest, _mm512_add_epi16(codes, codes));  // without their signs
        }
    }
    if (way == aligned && _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(short(0xff00)))) return false;
    return (usual0 & usual1) == 0xffff;
}

// Whether a value of the panel may be rounded otherwise: a nonzero subnormal, the largest, or beyond.
bool any_unusual(const u32 *from, u32 smallest, u32 largest) {
    __mmask16 found = 0;
    for (int i = 0; i < panel; i += lanes32) {
        const __m512i magnitude = _mm512_and_si512(_mm512_loadu_si512(from + i), constant(0x7fffffffu));
        const __m512i above = _mm512_sub_epi32(magnitude, constant(smallest));
        found |= _mm512_mask_cmpge_epu32_mask(_mm512_test_epi32_mask(magnitude, magnitude), above,
                                              constant(largest - smallest));
    }
    return found != 0;
}

template <int way, int end>
bool run_own_layout(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random,
                    const TopRounder &rounder) {
    const Picks picks = make_picks(rounder);
    const u32 smallest = way == scaled ? rounder.smallest : 0;
    char *out = static_cast<char *>(to);
    bool plain = true, unusual = false;
    for (; panels > 0; --panels, from += panel, out += 2 * panel, block += 4) {
        // Where one panel has such values the next is likely to.
        unusual = unusual && any_unusual(from, smallest, rounder.limit);
        if (!unusual) {
            u32v words[8];
            if (const PanelWords *kept = random.kept_words(block))
                __builtin_memcpy(words, kept, sizeof words);
            else if (__builtin_expect(are_near(random.near, block, 4), 1))
                block_words<4>(block, random.near, words);
            else
                block_words<4>(block, tag_rounding, random.key, words);
            if (rounder.random_mask != ~0u)
                for (u32v &lanes : words) lanes &= rounder.random_mask;
            if (__builtin_expect(round_own_layout<way>(from, words, out, picks), 1)) continue;
            unusual = any_unusual(from, smallest, rounder.limit);
        }
        if (!unusual) continue;
        typedef TopShape<stochastic, way, end, true, false, true> Shape;
        const Found found = round_whole<u16, Shape>(from, out, block, random, rounder);
        if (found != nothing) fall_back(from, out, block, random, rounder);
        plain &= found == nothing;
    }
    return plain;
}

typedef decltype(TopRounder::run) Run;

template <class Out, int way, int end>
Run stochastic_run(bool full, bool right, bool negative_zero) {
    if (full && negative_zero) return run<Out, TopShape<stochastic, way, end, true, false, true>>;
    if (full) return run<Out, TopShape<stochastic, way, end, true, false, false>>;
    if (right && negative_zero) return run<Out, TopShape<stochastic, way, end, false, true, true>>;
    if (right) return run<Out, TopShape<stochastic, way, end, false, true, false>>;
    if (negative_zero) return run<Out, TopShape<stochastic, way, end, false, false, true>>;
    return run<Out, TopShape<stochastic, way, end, false, false, false>>;
}

template <class Out>
Run stochastic_run(int way, int end, bool full, bool right, bool negative_zero) {
    if (way == scaled && end == symmetric) return stochastic_run<Out, scaled, symmetric>(full, right, negative_zero);
    if (way == scaled) return stochastic_run<Out, scaled, to_nan>(full, right, negative_zero);
    if (end == symmetric) return stochastic_run<Out, aligned, symmetric>(full, right, negative_zero);
    return stochastic_run<Out, aligned, to_nan>(full, right, negative_zero);
}

// The other modes, in fewer shapes: their sign is shifted, but in nearest-even bytes.
template <class Out, int mode, int end>
Run plain_run(int way, bool full, bool negative_zero) {
    if constexpr (sizeof(Out) == 1 && mode == nearest_even) {
        if (way == scaled && full && negative_zero) return run<Out, TopShape<mode, scaled, end, true, false, true>>;
        if (way == scaled && full) return run<Out, TopShape<mode, scaled, end, true, false, false>>;
    }
    if (way == scaled && negative_zero) return run<Out, TopShape<mode, scaled, end, false, false, true>>;
    if (way == scaled) return run<Out, TopShape<mode, scaled, end, false, false, false>>;
    if (negative_zero) return run<Out, TopShape<mode, aligned, end, false, false, true>>;
    return run<Out, TopShape<mode, aligned, end, false, false, false>>;
}

template <class Out>
Run plain_run(int mode, int way, int end, bool full, bool negative_zero) {
    switch (mode) {
        case nearest_away:
            return plain_run<Out, nearest_away, to_nan>(way, full, negative_zero);
        case toward_zero:
            return plain_run<Out, toward_zero, to_nan>(way, full, negative_zero);
        case up:
            return plain_run<Out, up, to_nan>(way, full, negative_zero);
        case down:
            return plain_run<Out, down, to_nan>(way, full, negative_zero);
        case odd:
            return plain_run<Out, odd, to_nan>(way, full, negative_zero);
        default:
            return end == symmetric ? plain_run<Out, nearest_even, symmetric>(way, full, negative_zero)
                                    : plain_run<Out, nearest_even, to_nan>(way, full, negative_zero);
    }
}

template <class Out>
Run run_of(const TopRounder &k, int mode, int end, bool negative_zero) {
    const int way = k.fast_rounder.way;
    const bool full = k.sign_shift == 0;
    if constexpr (sizeof(Out) == 2) {
        if (k.takes_kept && way == scaled)
            return end == symmetric ? run_own_layout<scaled, symmetric> : run_own_layout<scaled, to_nan>;
        if (k.takes_kept)
            return end == symmetric ? run_own_layout<aligned, symmetric> : run_own_layout<aligned, to_nan>;
    }
    if (mode != stochastic) return k.right ? nullptr : plain_run<Out>(mode, way, end, full, negative_zero);
    return stochastic_run<Out>(way, end, full, k.right > 0, negative_zero);
}

// What a mode adds below the code to every value.
u32 addend(int mode, u32 unit) {
    if (mode == nearest_even) return unit / 2 - 1;
    return mode == nearest_away ? unit / 2 : 0;
}

}  // namespace

TopRounder make_top_rounder(const Rounding &r, const FastRounder &fast_rounder, FastPanel fast, GeneralPanel general,
                            const Rounder<u32> &rounder, int bytes) {
    const Format &f = r.format;
    TopRounder k = {};
    if (fast_rounder.way < 0 || bytes > 2) return k;
    k.fast = fast;
    k.general = general;
    k.fast_rounder = fast_rounder;
    k.rounder = &rounder;
    k.stochastic = r.mode == stochastic;
    const bool own_layout =
        f.exponent_bits == 5 ? f.mantissa_bits == 10 && f.emin == -14 && f.max_code == 0x7bff
                             : f.exponent_bits == 8 && f.mantissa_bits == 7 && f.emin == -126 && f.max_code == 0x7f7f;
    k.takes_kept = k.stochastic && bytes == 2 && f.negative_zero && own_layout;
    const u32 largest = u32(f.max_code);
    // All that lies beyond the largest value is one magnitude, the largest or the next: then it is clamped there.
    const bool one = fast && fast_rounder.end == symmetric && u32(r.over_pos) - largest <= 1;
    const int end = one ? int(symmetric) : int(to_nan);
    const Decoder<u32> d = make_decoder<u32>(f);
    k.clamp = decode_finite(one ? u32(r.over_pos) : largest + 1, d);
    k.limit = decode_finite(largest, d);
    k.smallest = d.emin_bits;
    const int discarded = 32 - 8 * bytes, fraction = 23 - f.mantissa_bits, shift = discarded - fraction;
    k.left = shift > 0 ? shift : 0;
    k.right = shift < 0 ? -shift : 0;
    const u32 start = fast_rounder.way == scaled ? k.smallest : 0;
    k.base = addend(r.mode, u32(1) << discarded) - (shift > 0 ? start << shift : start >> -shift);
    const int sign_position = discarded + f.exponent_bits + f.mantissa_bits;
    k.sign_shift = 31 - sign_position;
    k.sign = u32(1) << sign_position;
    k.random_mask = ((1u << 16) - (1u << (16 - r.random_bits))) * 0x10001u;
    const bool short_of_bits = k.stochastic && fast_rounder.way == scaled && fraction < r.random_bits;
    k.normal = short_of_bits ? u16(((1u << f.exponent_bits) - 1) << f.mantissa_bits) : u16(0);
    // In nearest_byte the sum's exponent field is E + fraction + 127, the code's E - emin
    k.unit_sum = bit_cast<u32>(float((1 << fraction) + (-(f.emin + fraction + 127) & (255 >> f.mantissa_bits))));
    k.to_top = u32(1) << 24 | u32(1) << (1 + f.mantissa_bits);
    k.fractions = bit_cast<u32>(1.0f) + (u32(16 + f.mantissa_bits - f.emin) << 23);
    k.run = bytes == 2 ? run_of<u16>(k, r.mode, end, f.negative_zero) : run_of<u8>(k, r.mode, end, f.negative_zero);
    return k;
}

#else

TopRounder make_top_rounder(const Rounding &, const FastRounder &, FastPanel, GeneralPanel, const Rounder<u32> &, int) {
    return {};
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
