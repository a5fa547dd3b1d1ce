// Float32 values to codes at the top of their lanes. The bits are those of round.h.
//
// For c = min(|x|, clamp) the sum c + max(c, 2^emin), rounded toward zero, is 2c for a normal value, and for a
// subnormal one c in the place it has beside 2^emin: less the bits of 2^emin, both are the code and below it the
// discarded bits. So one integer addition brings in the new exponent and the random bits, and the code is whole bytes
// at the top of the lane, where a permutation picks it up. Formats with float32's exponents need no sum.
//
// NaN is left to other panels, and everything beyond the largest value unless all of it becomes one magnitude.
#include "isa/lanes.h"
#include "rounding/top_panels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
namespace {

constexpr int ahead = 1024;  // elements between a load and the prefetch beside it

LP_INLINE __m512i constant(u32 value) { return _mm512_set1_epi32(int(value)); }

// Keeps the values, which gcc would load again for every use, and the prefetches at their places.
LP_INLINE void load_pair(const u32 *at, __m512i &x0, __m512i &x1) {
    x0 = _mm512_loadu_si512(at), x1 = _mm512_loadu_si512(at + 16);
    __asm__ volatile("prefetcht0 %2\n\tprefetcht0 %3" : "+v"(x0), "+v"(x1) : "m"(at[ahead]), "m"(at[ahead + 16]));
}

// The upper halves of two vectors' lanes.
LP_INLINE __m512i odd_numbers() {
    alignas(64) u16 odd[32];
    for (int i = 0; i < 32; ++i) odd[i] = u16(2 * i + 1);
    return _mm512_load_si512(odd);
}
LP_INLINE __m512i upper_halves(__m512i a, __m512i b, __m512i odd) { return _mm512_permutex2var_epi16(a, odd, b); }

// The upper bytes of a vector's lanes, four at a time, to place `part` of each four lanes of `to`.
template <int part>
LP_INLINE __m512i upper_bytes(__m512i to, __m512i from) {
    return _mm512_mask_shuffle_epi8(to, 0x000f000f000f000full << (4 * part), from, _mm512_set1_epi32(0x0f0b0703));
}

// Vectors that stay in registers through a panel.
struct Constants {
    __m512i clamp, limit, smallest, base, shift, sign_shift, sign, code, low, high, fractions, odd, random_mask;
    __m512i exponent, unit_sum, to_top;  // of nearest_byte
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

template <class Out>
LP_INLINE Constants make_constants(const TopRounder &k) {
    const u32 code_bits = sizeof(Out) == 2 ? 0xffff0000u : 0xff000000u;
    return {constant(k.clamp),       constant(k.limit),           constant(k.smallest),  constant(k.base),
            constant(u32(k.shift)),  constant(u32(k.sign_shift)), constant(k.sign),      constant(code_bits & ~k.sign),
            half_word_bytes<Out>(0), half_word_bytes<Out>(1),     constant(k.fractions), odd_numbers(),
            constant(k.random_mask), constant(0x7f800000u),       constant(k.unit_sum),  constant(k.to_top)};
}

template <class Out, int half>
LP_INLINE __m512i random_below(__m512i words, const Constants &k) {
    if (sizeof(Out) == 2 && half == 0) return _mm512_mask_blend_epi16(0x55555555, k.base, words);
    const __mmask64 bytes = sizeof(Out) == 2 ? 0x3333333333333333ull : 0x6666666666666666ull;
    return _mm512_mask_shuffle_epi8(k.base, bytes, words, half ? k.high : k.low);
}

// `full`: the code's sign is the lane's.
template <int mode_, int way_, int end_, bool full_, bool negative_zero_>
struct TopShape {
    static constexpr int mode = mode_, way = way_, end = end_;
    static constexpr bool full = full_, negative_zero = negative_zero_;
};

// What is left of a sum above the discarded bits, with the sign of x.
template <class Shape>
LP_INLINE __m512i with_sign(__m512i sum, __m512i x, const Constants &k) {
    const __m512i sign = Shape::full ? x : _mm512_srlv_epi32(x, k.sign_shift);
    if (Shape::negative_zero) return _mm512_ternarylogic_epi32(k.sign, sign, sum, 0xCA);  // sign where k.sign
    const __m512i code = _mm512_and_si512(sum, k.code);
    return _mm512_mask_ternarylogic_epi32(code, _mm512_test_epi32_mask(code, code), sign, k.sign, 0xF8);
}

// The lesser of a magnitude and the clamp.
template <class Shape>
LP_INLINE __m512 clamped(__m512i x, const Constants &k, __mmask16 &plain) {
    const __m512 c = _mm512_range_ps((__m512)x, (__m512)k.clamp, 2 | 8);  // sign cleared
    if (Shape::end == to_nan) plain = _mm512_mask_cmp_ps_mask(plain, c, (__m512)k.limit, _CMP_LE_OQ);
    return c;
}

// Nearest-even to bytes in one sum. For 2^E = the power of two at or below max(c, 2^emin), c beside 2^E * 2^(23 - M)
// ends at the format's last place, so that the hardware's addition rounds it there: the sum's last bits count c in
// units of 2^(E - M), and its exponent field tells E. One product brings that field beside the count, at the top of the
// lane; what the field is too large by was added to the count, an even number since M > 0, so that ties go where they
// should.
template <class Shape>
LP_INLINE __m512i nearest_byte(__m512i x, const Constants &k, __mmask16 &plain) {
    const __m512 c = clamped<Shape>(x, k, plain);
    const __m512i power = _mm512_and_si512(_mm512_max_epu32((__m512i)c, k.smallest), k.exponent);
    const __m512 sum =
        _mm512_fmadd_round_ps((__m512)power, (__m512)k.unit_sum, c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return with_sign<Shape>(_mm512_mullo_epi32((__m512i)sum, k.to_top), x, k);
}

// Codes of 16 bits have as many random bits below them as their subnormal values have places: those are counted in
// integers.
template <class Out, class Shape, int half>
LP_INLINE __m512i round_at_top(__m512i x, __m512i words, const Constants &k, __mmask16 &plain) {
    if constexpr (Shape::mode == nearest_even) return nearest_byte<Shape>(x, k, plain);
    const __m512 c = clamped<Shape>(x, k, plain);
    __m512i y = (__m512i)c;
    if (Shape::way == scaled) {
        const __m512 beside = (__m512)_mm512_max_epu32(y, k.smallest);
        y = (__m512i)_mm512_add_round_ps(c, beside, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        y = _mm512_sllv_epi32(y, k.shift);
    }
    if (Shape::way == scaled && sizeof(Out) == 2) {
        const __mmask16 small = _mm512_cmp_ps_mask(c, (__m512)k.smallest, _CMP_LT_OQ);
        const __m512i count = _mm512_cvttps_epi32(_mm512_mul_ps(c, (__m512)k.fractions));
        y = _mm512_mask_sub_epi32(y, small, count, k.base);
    }
    return with_sign<Shape>(_mm512_add_epi32(y, random_below<Out, half>(words, k)), x, k);
}

// The words of the panel that begins with a block.
LP_INLINE void take_words(const RandomBlocks &random, u64 block, u32 mask, u32v (&words)[8]) {
    if (const PanelWords *kept = random.kept_words(block))
        __builtin_memcpy(words, kept, sizeof words);
    else if (__builtin_expect(are_near(random.near, block, 4), 1))
        block_words<4>(block, random.near, words);
    else
        block_words<4>(block, tag_rounding, random.key, words);
    if (mask != ~0u)
        for (u32v &lanes : words) lanes &= mask;
}

// Whether this way covers all values of the panel.
template <class Out, class Shape>
LP_INLINE bool round_panel(const u32 *from, const u32v (&random)[8], char *to, const Constants &k) {
    __mmask16 plain = 0xffff;
    __m512i bytes = {};
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; ++pair) {
        __m512i x0, x1;
        load_pair(from + 32 * pair, x0, x1);
        __m512i words = {};
        if (Shape::mode == stochastic) words = _mm512_and_si512((__m512i)random[pair], k.random_mask);
        const __m512i first = round_at_top<Out, Shape, 0>(x0, words, k, plain);
        const __m512i second = round_at_top<Out, Shape, 1>(x1, words, k, plain);
        if (Shape::end == symmetric) plain = _mm512_mask_cmp_ps_mask(plain, (__m512)x0, (__m512)x1, _CMP_ORD_Q);
        if constexpr (sizeof(Out) == 2) {
            _mm512_storeu_si512(to + 64 * pair, upper_halves(first, second, k.odd));
        } else if (pair % 2 == 0) {
            bytes = upper_bytes<1>(upper_bytes<0>(bytes, first), second);
        } else {
            bytes = upper_bytes<3>(upper_bytes<2>(bytes, first), second);
            const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_storeu_si512(to + 32 * (pair - 1), _mm512_permutexvar_epi32(order, bytes));
        }
    }
    return plain == 0xffff;
}

// Not inlined, so that the words of the panels that do not need it stay in registers.
[[gnu::noinline]] void fall_back(const u32 *from, char *to, u64 block, const RandomBlocks &random,
                                 const TopRounder &rounder) {
    PanelWords words;
    if (rounder.stochastic) random.fill(block, words);
    rounder.fast(from, words, to, rounder.fast_rounder);
}

template <class Shape>
bool run_bytes(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random,
               const TopRounder &rounder) {
    const Constants k = make_constants<u8>(rounder);
    char *out = static_cast<char *>(to);
    bool plain = true;
    for (; panels > 0; --panels, from += panel, out += panel, block += 4) {
        if (Shape::mode != stochastic || __builtin_expect(are_near(random.near, block, 4), 1)) {
            u32v words[8] = {};
            if (Shape::mode == stochastic) block_words<4>(block, random.near, words);
            if (__builtin_expect(round_panel<u8, Shape>(from, words, out, k), 1)) continue;
        }
        fall_back(from, out, block, random, rounder);
        plain = false;
    }
    return plain;
}

// ---- float16 and bfloat16 ----
//
// Random bits added to the float32's own bits, below what the code shows of them, and the rest cut off: so are all
// rounded but what is not a number, overflows, or is subnormal in float16.

// Whether all of a panel is surely rounded so.
template <int way>
LP_INLINE bool round_own_layout(const u32 *from, const u32v (&random)[8], char *to, __m512i odd) {
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
            const __m512i codes = upper_halves(sum0, sum1, odd);
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

// Not inlined, as above.
template <class Shape>
[[gnu::noinline]] bool round_whole(const u32 *from, char *to, u64 block, const RandomBlocks &random,
                                   const TopRounder &rounder) {
    u32v words[8];
    take_words(random, block, rounder.random_mask, words);
    return round_panel<u16, Shape>(from, words, to, make_constants<u16>(rounder));
}

template <int way, int end>
bool run_own_layout(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random,
                    const TopRounder &rounder) {
    const __m512i odd = odd_numbers();
    const u32 smallest = way == scaled ? rounder.smallest : 0;
    char *out = static_cast<char *>(to);
    bool plain = true, unusual = false;
    for (; panels > 0; --panels, from += panel, out += 2 * panel, block += 4) {
        // Where one panel has such values the next is likely to.
        unusual = unusual && any_unusual(from, smallest, rounder.limit);
        if (!unusual) {
            u32v words[8];
            take_words(random, block, rounder.random_mask, words);
            if (__builtin_expect(round_own_layout<way>(from, words, out, odd), 1)) continue;
            unusual = any_unusual(from, smallest, rounder.limit);
        }
        if (!unusual || round_whole<TopShape<stochastic, way, end, true, true>>(from, out, block, random, rounder))
            continue;
        fall_back(from, out, block, random, rounder);
        plain = false;
    }
    return plain;
}

typedef decltype(TopRounder::run) Run;

template <int mode, int end>
Run bytes_run(bool full, bool negative_zero) {
    if (full && negative_zero) return run_bytes<TopShape<mode, scaled, end, true, true>>;
    if (full) return run_bytes<TopShape<mode, scaled, end, true, false>>;
    return negative_zero ? run_bytes<TopShape<mode, scaled, end, false, true>>
                         : run_bytes<TopShape<mode, scaled, end, false, false>>;
}

template <int end>
Run run_of(const TopRounder &k, int bytes, bool negative_zero) {
    if (bytes == 2) return k.fast_rounder.way == scaled ? run_own_layout<scaled, end> : run_own_layout<aligned, end>;
    return k.stochastic ? bytes_run<stochastic, end>(k.sign_shift == 0, negative_zero)
                        : bytes_run<nearest_even, end>(k.sign_shift == 0, negative_zero);
}

}  // namespace

TopRounder make_top_rounder(const Rounding &r, const FastRounder &fast_rounder, FastPanel fast, int bytes) {
    const Format &f = r.format;
    TopRounder k = {};
    const bool own_layout =
        f.exponent_bits == 5 ? f.mantissa_bits == 10 && f.emin == -14 && f.max_code == 0x7bff
                             : f.exponent_bits == 8 && f.mantissa_bits == 7 && f.emin == -126 && f.max_code == 0x7f7f;
    k.stochastic = r.mode == stochastic;
    if (!fast || bytes > (k.stochastic && own_layout && f.negative_zero ? 2 : 1)) return k;
    k.fast = fast;
    k.fast_rounder = fast_rounder;
    const u32 largest = u32(f.max_code);
    // All that lies beyond the largest value is one magnitude, the largest or the next: then it is clamped there.
    const bool one = fast_rounder.end == symmetric && u32(r.over_pos) - largest <= 1;
    const Decoder<u32> d = make_decoder<u32>(f);
    k.clamp = decode_finite(one ? u32(r.over_pos) : largest + 1, d);
    k.limit = decode_finite(largest, d);
    k.smallest = d.emin_bits;
    const int discarded = 32 - 8 * bytes, sign_position = discarded + f.exponent_bits + f.mantissa_bits;
    const int fraction = 23 - f.mantissa_bits;
    k.shift = discarded - fraction;
    k.base = fast_rounder.way == scaled ? 0 - (k.smallest << k.shift) : 0;
    k.sign_shift = 31 - sign_position;
    k.sign = u32(1) << sign_position;
    k.random_mask = ((1u << 16) - (1u << (16 - r.random_bits))) * 0x10001u;
    k.fractions = bit_cast<u32>(1.0f) + (u32(16 + f.mantissa_bits - f.emin) << 23);
    // In nearest_byte the sum's exponent field is E + fraction + 127, the code's E - emin.
    k.unit_sum = bit_cast<u32>(float((1 << fraction) + (-(f.emin + fraction + 127) & (255 >> f.mantissa_bits))));
    k.to_top = u32(1) << 24 | u32(1) << (1 + f.mantissa_bits);
    k.run = one ? run_of<symmetric>(k, bytes, f.negative_zero) : run_of<to_nan>(k, bytes, f.negative_zero);
    return k;
}

#else

TopRounder make_top_rounder(const Rounding &, const FastRounder &, FastPanel, int) { return {}; }

#endif

}  // namespace LP_ISA
}  // namespace lowprec
