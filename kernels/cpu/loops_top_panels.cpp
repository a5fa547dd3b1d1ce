// Stochastic rounding with the code at the top of the lane. The bits are those of round.h.
//
// For c = min(|x|, clamp) the sum c + max(c, 2^emin), rounded toward zero, is 2c for a normal value, and for a
// subnormal one c in the place it has beside 2^emin: less the bits of 2^emin, both are the code and below it the
// discarded bits. So one integer addition brings in the random bits and the new exponent, and the code is whole bytes
// at the top of the lane, where a permutation picks it up. Two things are left to the fallback: NaN (and everything
// beyond the largest value where it becomes NaN), and nonzero subnormals of formats of more than 7 mantissa bits,
// whose place beside 2^emin has fewer fraction bits than there are random ones. Formats with float32's exponents
// need no sum.
#include "lanes.h"
#include "top_panels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
namespace {

constexpr int ahead = 1024;  // elements between a load and the prefetch beside it

// Whole bytes; codes below the significand's place, which shifts right; whether -0 exists.
template <int way_, int end_, bool full_, bool right_, bool negative_zero_>
struct Shape {
    static constexpr int way = way_, end = end_;
    static constexpr bool full = full_, right = right_, negative_zero = negative_zero_;
};

template <class T>
LP_INLINE __m512i constant(T value) {
    return sizeof(T) == 4 ? _mm512_set1_epi32(int(value)) : _mm512_set1_epi16(short(value));
}

// Vectors that stay in registers through a panel.
struct Constants {
    __m512i clamp, limit, smallest, base, shift, sign_shift, sign, code, low, high;
};

// Positions of a half-word's bytes below the code: the code has the lane's upper 16 or its top 8 bits.
template <class Out>
LP_INLINE __m512i half_word_bytes(int half) {
    alignas(64) u8 from[64];
    for (int i = 0; i < 64; ++i) {
        const int byte = i & 3, first = sizeof(Out) == 2 ? 0 : 1;
        from[i] = u8((i & 12) + 2 * half + ((byte - first) & 1));
    }
    return _mm512_load_si512(from);
}

template <class Out, int half>
LP_INLINE __m512i random_below(__m512i words, const Constants &k) {
    if (sizeof(Out) == 2 && half == 0) return _mm512_mask_blend_epi16(0x55555555, k.base, words);
    const __mmask64 bytes = sizeof(Out) == 2 ? 0x3333333333333333ull : 0x6666666666666666ull;
    return _mm512_mask_shuffle_epi8(k.base, bytes, words, half ? k.high : k.low);
}

template <class Out, class Shape, int half>
LP_INLINE __m512i round_at_top(__m512i x, __m512i words, const Constants &k, __mmask16 &plain) {
    const __m512 clamped = _mm512_range_ps((__m512)x, (__m512)k.clamp, 2 | 8);  // least magnitude, sign cleared
    const __m512i c = (__m512i)clamped;
    if (Shape::end == to_nan) plain = _mm512_mask_cmp_ps_mask(plain, clamped, (__m512)k.limit, _CMP_LE_OQ);
    __m512i y = c;
    if (Shape::way == scaled)
        y = (__m512i)_mm512_add_round_ps(clamped, (__m512)_mm512_max_epu32(c, k.smallest),
                                         _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    if (Shape::right) y = _mm512_srlv_epi32(y, k.shift);
    if (!Shape::right && Shape::way == scaled) y = _mm512_sllv_epi32(y, k.shift);
    const __m512i sum = _mm512_add_epi32(y, random_below<Out, half>(words, k));
    const __m512i sign = Shape::full ? x : _mm512_srlv_epi32(x, k.sign_shift);
    if (Shape::negative_zero) return _mm512_ternarylogic_epi32(k.sign, sign, sum, 0xCA);  // sign where k.sign
    const __m512i code = _mm512_and_si512(sum, k.code);
    return _mm512_mask_ternarylogic_epi32(code, _mm512_test_epi32_mask(code, code), sign, k.sign, 0xF8);
}

// The upper halves of two vectors' lanes.
LP_INLINE __m512i upper_halves(__m512i a, __m512i b, __m512i odd) { return _mm512_permutex2var_epi16(a, odd, b); }

template <class Out>
LP_INLINE Constants make_constants(const TopRounder &k) {
    const u32 code_bits = sizeof(Out) == 2 ? 0xffff0000u : 0xff000000u;
    return {constant(k.clamp),
            constant(k.limit),
            constant(k.smallest),
            constant(k.base),
            constant(u32(k.left ? k.left : k.right)),
            constant(u32(k.sign_shift)),
            constant(k.sign),
            constant(code_bits & ~k.sign),
            half_word_bytes<Out>(0),
            half_word_bytes<Out>(1)};
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

template <class Out, class Shape>
LP_INLINE Found round_panel(const u32 *from, const u32v (&random)[8], char *to, const Constants &k, const Picks &picks,
                            const TopRounder &rounder) {
    __mmask16 plain = 0xffff;
    __mmask32 large = ~__mmask32(0);
    __m512i before = {};
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; ++pair) {
        const u32 *at = from + 32 * pair;
        __m512i x0 = _mm512_loadu_si512(at), x1 = _mm512_loadu_si512(at + 16);
        // Keeps the values, which gcc would load again for every use, and the prefetches at their places.
        __asm__ volatile("prefetcht0 %2\n\tprefetcht0 %3" : "+v"(x0), "+v"(x1) : "m"(at[ahead]), "m"(at[ahead + 16]));
        const __m512i words = _mm512_and_si512((__m512i)random[pair], picks.kept);
        const __m512i first = round_at_top<Out, Shape, 0>(x0, words, k, plain);
        const __m512i second = round_at_top<Out, Shape, 1>(x1, words, k, plain);
        const __m512i both = upper_halves(first, second, picks.odd);
        if (Shape::end == symmetric) plain = _mm512_mask_cmp_ps_mask(plain, (__m512)x0, (__m512)x1, _CMP_ORD_Q);
        if constexpr (sizeof(Out) == 2) {
            if (Shape::way == scaled) large = _mm512_mask_test_epi16_mask(large, both, picks.normal);
            _mm512_storeu_si512(to + 64 * pair, both);
        } else if (pair % 2 == 0) {
            before = both;
        } else {
            const __m512i bytes = _mm512_packus_epi16(_mm512_srli_epi16(before, 8), _mm512_srli_epi16(both, 8));
            const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            _mm512_storeu_si512(to + 32 * (pair - 1), _mm512_permutexvar_epi64(order, bytes));
        }
    }
    if (__builtin_expect(plain != 0xffff, 0)) return not_plain;
    if (__builtin_expect(large == ~__mmask32(0), 1) || !rounder.normal) return nothing;
    return any_subnormal(from, rounder.smallest) ? subnormals : nothing;
}

// Not inlined, so that the words of the panels that do not need it stay in registers.
[[gnu::noinline]] void fall_back(const u32 *from, char *to, u64 block, const RandomBlocks &random,
                                 const TopRounder &rounder) {
    PanelWords words;
    random.fill(block, words);
    rounder.fallback(from, words, to, rounder.rounder);
}

template <class Out, class Shape>
bool run(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random, const TopRounder &rounder) {
    const Constants k = make_constants<Out>(rounder);
    const Picks picks = make_picks(rounder);
    char *out = static_cast<char *>(to);
    bool plain = true;
    for (; panels > 0; --panels, from += panel, out += panel * sizeof(Out), block += 4) {
        Found found = not_plain;
        if (__builtin_expect(are_near(random.near, block, 4), 1)) {
            u32v words[8];
            block_words<4>(block, random.near, words);
            found = round_panel<Out, Shape>(from, words, out, k, picks, rounder);
        }
        if (__builtin_expect(found != nothing, 0)) fall_back(from, out, block, random, rounder);
        plain &= found != not_plain;
    }
    return plain;
}

template <class Out, int way, int end>
auto run_of(bool full, bool right, bool negative_zero) {
    if (full && negative_zero) return run<Out, Shape<way, end, true, false, true>>;
    if (full) return run<Out, Shape<way, end, true, false, false>>;
    if (right && negative_zero) return run<Out, Shape<way, end, false, true, true>>;
    if (right) return run<Out, Shape<way, end, false, true, false>>;
    if (negative_zero) return run<Out, Shape<way, end, false, false, true>>;
    return run<Out, Shape<way, end, false, false, false>>;
}

template <class Out>
auto run_of(const FastRounder &fast, bool full, bool right, bool negative_zero) {
    if (fast.way == scaled && fast.end == symmetric) return run_of<Out, scaled, symmetric>(full, right, negative_zero);
    if (fast.way == scaled) return run_of<Out, scaled, to_nan>(full, right, negative_zero);
    if (fast.end == symmetric) return run_of<Out, aligned, symmetric>(full, right, negative_zero);
    return run_of<Out, aligned, to_nan>(full, right, negative_zero);
}

}  // namespace

TopRounder make_top_rounder(const Rounding &r, const FastRounder &fast, FastPanel fallback, int bytes) {
    const Format &f = r.format;
    TopRounder k = {};
    k.fallback = fallback;
    k.rounder = fast;
    const u32 stands_for_beyond = fast.end == symmetric ? u32(r.over_pos) : u32(f.max_code) + 1;
    const bool next = stands_for_beyond == u32(f.max_code) || stands_for_beyond == u32(f.max_code) + 1;
    if (!fallback || fast.way < 0 || r.mode != stochastic || bytes > 2 || !next) return k;
    const Decoder<u32> d = make_decoder<u32>(f);
    k.clamp = decode_finite(stands_for_beyond, d);
    k.limit = decode_finite(u32(f.max_code), d);
    k.smallest = d.emin_bits;
    const int discarded = 32 - 8 * bytes, fraction = 23 - f.mantissa_bits, up = discarded - fraction;
    k.left = up > 0 ? up : 0;
    k.right = up < 0 ? -up : 0;
    const u32 start = fast.way == scaled ? k.smallest : 0;
    k.base = 0u - (up > 0 ? start << up : start >> -up);
    const int sign_position = discarded + f.exponent_bits + f.mantissa_bits;
    k.sign_shift = 31 - sign_position;
    k.sign = 1u << sign_position;
    const u32 half_word = (1u << 16) - (1u << (16 - r.random_bits));
    k.random_mask = half_word * 0x10001u;
    const bool subnormals_short = fast.way == scaled && fraction < r.random_bits;
    k.normal = subnormals_short ? u16(((1u << f.exponent_bits) - 1) << f.mantissa_bits) : u16(0);
    const bool full = sign_position == 31;
    k.run = bytes == 2 ? run_of<u16>(fast, full, k.right > 0, f.negative_zero)
                       : run_of<u8>(fast, full, k.right > 0, f.negative_zero);
    return k;
}

#else

TopRounder make_top_rounder(const Rounding &, const FastRounder &, FastPanel, int) { return {}; }

#endif

}  // namespace LP_ISA
}  // namespace lowprec
