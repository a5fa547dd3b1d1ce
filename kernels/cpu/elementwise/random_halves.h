// Operations on float16 arrays with float16 results, rounded stochastically: in registers from one to the other, the
// random words too.
//
// The code of a magnitude, with 16 bits below it, is a linear function of its float32's bits (or, for subnormal
// results, of the number itself); stochastic rounding adds the random bits to that and cuts the sum off. An operation
// gives a float32 within so many places of its result: where the sum is at least that far from the next code, the
// result itself, whatever it is, rounds to the same. The few others are found in full, as doubles.
#ifndef LOWPREC_RANDOM_HALVES_H
#define LOWPREC_RANDOM_HALVES_H

#include "elementwise/half_runs.h"
#include "elementwise/open_halves.h"
#include "isa/widths.h"
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

// What is found of each pair of vectors of some panels.
struct FoundHalves {
    alignas(64) u32 unusual[8 * panels_at_once];  // not 0 where some results may not be normal numbers
    alignas(64) u32 open[8 * panels_at_once];     // of the two vectors' lanes in turns, those too near to a code
};

// The pairs of `panels` panels for which there is anything left to do; returns how many those are.
LP_INLINE int unsure_pairs(const FoundHalves &found, int panels, u32 *pairs) {
    int number = 0;
    for (int first = 0; first < 8 * panels; first += lanes32) {
        const u32v places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const u32v any = load<u32v>(found.unusual + first) | load<u32v>(found.open + first);
        const u32 here = lanes_set(any) & (8 * panels - first < lanes32 ? 0xffu : 0xffffu);
        store(pairs + number, (u32v)_mm512_maskz_compress_epi32(__mmask16(here), (__m512i)(places + u32(first))));
        number += __builtin_popcount(here);
    }
    return number;
}

// What is left to do of `panels` panels; returns of how many pairs that is.
template <class Operation>
[[gnu::noinline]] int round_unsure(const char *const *from, const PanelWords *random, const FoundHalves &found,
                                   int panels, char *to, const AnyHalves &any, OpenHalves<Operation> &open,
                                   const Rounding &rounding) {
    alignas(64) u32 pairs[8 * panels_at_once + lanes32];
    const int number = unsure_pairs(found, panels, pairs);
    for (int i = 0; i < number; ++i) {
        const int pair = int(pairs[i]), at = 64 * pair;
        const PanelWords &words = random[pair / 8];
        u32 lanes = found.open[pair];
        if (found.unusual[pair])
            lanes = any.round<Operation>(from[0] + at, from[1] + at, from[2] + at, words.words[pair % 8], to + at);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes) / 2, second = __builtin_ctz(lanes) % 2;
            const u32 both = reinterpret_cast<const u32 *>(&words)[16 * (pair % 8) + lane];
            open.note(from, 32 * pair + 16 * second + lane, both >> (16 * second), to);
        }
        open.settle(open.most, rounding);
    }
    return number;
}

// Results that are normal numbers: the random bits that their float32s show are added to those, and the rest is cut
// off by the conversion.
struct NormalHalves {
    __m512i far, more, lower_words;
    __m256i beside_normal, exponent;
    __mmask32 lower;
    __mmask64 upper_bytes;

    explicit LP_INLINE NormalHalves(u32 margin) {
        alignas(64) u8 from[64];
        for (int i = 0; i < 64; ++i) from[i] = u8((i & 12) + (i & 1));
        lower_words = _mm512_load_si512(from);
        far = _mm512_set1_epi16(short(0x1fffu & ~(2 * margin - 1)));
        more = _mm512_set1_epi16(short(margin));
        beside_normal = _mm256_set1_epi16(0x401);
        exponent = _mm256_set1_epi16(0x7000);
        lower = 0x55555555u;
        upper_bytes = 0xccccccccccccccccull;
        // Opaque, so that none of them is made anew where it is used.
        __asm__("" : "+v"(far), "+v"(more), "+v"(lower_words), "+v"(beside_normal), "+v"(exponent));
        __asm__("" : "+Yk"(lower), "+Yk"(upper_bytes));
    }

    // Those from the largest on may not be normal numbers, and those below 2^-12.
    template <class Operation>
    LP_INLINE void round(const char *a, const char *b, const char *c, u32v random, char *to, u32 &unusual,
                         u32 &open) const {
        const __m512i words = (__m512i)random;
        const __m512i x0 = (__m512i)AnyHalves::real_halves<Operation>(a, b, c);
        const __m512i x1 = (__m512i)AnyHalves::real_halves<Operation>(a + 32, b + 32, c + 32);
        const __m512i sum0 = _mm512_add_epi32(x0, _mm512_maskz_srli_epi16(lower, words, 3));
        const __m512i sum1 = _mm512_add_epi32(x1, _mm512_srli_epi32(words, 19));
        const __m256i code0 = _mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)sum0, _MM_FROUND_TO_ZERO);
        const __m256i code1 = _mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)sum1, _MM_FROUND_TO_ZERO);
        _mm256_storeu_si256((__m256i *)to, code0);
        _mm256_storeu_si256((__m256i *)(to + 32), code1);
        unusual = _mm256_testn_epi16_mask(_mm256_add_epi16(code0, beside_normal), exponent);
        unusual |= _mm256_testn_epi16_mask(_mm256_add_epi16(code1, beside_normal), exponent);
        if (!Operation::steps) return;
        const __m512i tails = _mm512_mask_shuffle_epi8(sum0, upper_bytes, sum1, lower_words);
        open = _mm512_testn_epi16_mask(_mm512_add_epi16(tails, more), far);
    }
};

// A panel, with the words in memory.
template <class Operation>
void round_half_panel(const char *const *from, const PanelWords &random, char *to, const HalfRounding &rounding) {
    const AnyHalves any(rounding);
    OpenHalves<Operation> open;
    FoundHalves found = {};
    for (u32 &pair : found.unusual) pair = 1;
    round_unsure<Operation>(from, &random, found, 1, to, any, open, rounding.rounding);
    open.settle(1, rounding.rounding);
}

// Whether the result lies apart from all operands, each of so many bytes.
inline bool lies_apart(const char *const *from, const char *to, i64 bytes) {
    bool apart = true;
    for (int i = 0; i < 3; ++i) apart &= u64(to - from[i] + bytes) >= u64(2 * bytes);
    return apart;
}

// Whole panels whose blocks are near.
template <class Operation>
void round_near_panels(const char *const *from, char *to, u64 block, i64 panels, const NearBlocks &near,
                       const HalfRounding &rounding) {
    const NormalHalves normal(margin_of(Operation::steps));
    const AnyHalves any(rounding);
    OpenHalves<Operation> open;
    const bool apart = lies_apart(from, to, 2 * panel * panels);
    PanelWords random[panels_at_once];
    FoundHalves found = {};
    alignas(64) char results[2 * panel * panels_at_once];
    const char *at[3] = {from[0], from[1], from[2]};
    int unsure = 0;
    for (int here; panels > 0; panels -= here) {
        here = panels < panels_at_once ? int(panels) : panels_at_once;
        char *const out = apart ? to : results;
        const bool usual = unsure <= 4 * here;  // where most are unsure the next are likely to be, too
        for (int p = 0; p < here; ++p, block += 4) {
            u32v words[8];
            block_words<4>(block, near, words);
            if (rounding.random_mask != ~0u)
                for (u32v &lanes : words) lanes &= rounding.random_mask;
            __builtin_memcpy(&random[p], words, sizeof words);
#pragma GCC unroll 8
            for (int pair = 0; pair < 8 && usual; ++pair) {
                const int first = 2 * panel * p + 64 * pair;
                normal.round<Operation>(at[0] + first, at[1] + first, at[2] + first, words[pair], out + first,
                                        found.unusual[8 * p + pair], found.open[8 * p + pair]);
            }
        }
        if (!usual)
            for (u32 &pair : found.unusual) pair = 1;
        const int pairs = round_unsure<Operation>(at, random, found, here, out, any, open, rounding.rounding);
        unsure = usual ? pairs : 0;
        if (!apart) {
            open.settle(1, rounding.rounding);
            __builtin_memcpy(to, results, 2 * panel * here);
        }
        for (const char *&operand : at) operand += 2 * panel * here;
        to += 2 * panel * here;
    }
    open.settle(1, rounding.rounding);
}

#else

template <class Operation>
LP_INLINE void round_halves(const char *const *from, int element, u32v random, char *to, OpenHalves<Operation> &open,
                            const HalfRounding &k) {
    constexpr u32 margin = place * margin_of(Operation::steps);
    const int at = 2 * element;
    const f32v x = Operation::of(half_to_real(load<u16v>(from[0] + at)), half_to_real(load<u16v>(from[1] + at)),
                                 half_to_real(load<u16v>(from[2] + at)));
    const u32v bits = bit_cast<u32v>(x), size = smaller(bits & 0x7fffffffu, splat<u32v>(k.clamp));
    const f32v small = bit_cast<f32v>(smaller(size, splat<u32v>(least_half)));
    const u32v count = (u32v) __builtin_convertvector(small * per_quantum, i32v);
    const u32v sum = (size < least_half ? count : (size << 3) + code_start) + random;
    const u32v code = (sum >> 16) | ((bits >> 16) & 0x8000u), one_nan = u32v{} + 0x7e00u;
    const i32v is_number = x == x;
    if constexpr (margin != 0) {
        const u32v far = (sum + margin) & (0xffffu & ~(2 * margin - 1));
        u32 lanes = lanes_set((u32v)((i32v)(far == 0) & is_number));
        for (; __builtin_expect(lanes != 0, 0); lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            open.note(from, element + lane, random[lane], to);
        }
    }
    store_as(reinterpret_cast<u16 *>(to + at), is_number ? code : one_nan);
}

// A panel, with the words in memory.
template <class Operation>
LP_INLINE void round_half_panel(const char *const *from, const PanelWords &random, char *to,
                                const HalfRounding &rounding) {
    OpenHalves<Operation> open;
    for (int pair = 0; pair < 8; ++pair) {
        for (int half = 0; half < 2; ++half)
            for (int v = 0; v < vectors_per_block; ++v) {
                const int element = lanes32 * ((2 * pair + half) * vectors_per_block + v);
                const u32v words = random.words[pair * vectors_per_block + v];
                round_halves(from, element, half ? words >> 16 : words & 0xffffu, to, open, rounding);
                open.settle(open.most, rounding.rounding);
            }
    }
    open.settle(1, rounding.rounding);
}

// Whole panels whose blocks are near.
template <class Operation>
void round_near_panels(const char *const *from, char *to, u64 block, i64 panels, const NearBlocks &near,
                       const HalfRounding &rounding) {
    const char *at[3] = {from[0], from[1], from[2]};
    for (; panels > 0; --panels, block += 4, to += 2 * panel) {
        PanelWords random;
        block_words<4>(block, near, random.words);
        if (rounding.random_mask != ~0u)
            for (u32v &lanes : random.words) lanes &= rounding.random_mask;
        round_half_panel<Operation>(at, random, to, rounding);
        for (const char *&operand : at) operand += 2 * panel;
    }
}

#endif

typedef void (*RandomHalfRun)(const char *const *from, char *to, u64 index, i64 count, u64 key,
                              const HalfRounding &rounding);

// Elements of which the first takes the random bits of index `index`.
template <class Operation>
void run_random_halves(const char *const *from, char *to, u64 index, i64 count, u64 key, const HalfRounding &rounding) {
    const RandomBlocks random = random_blocks(key, index >> 6);
    PanelWords words;
    i64 done = 0, length;
    for (; done < count; done += length) {
        const u64 here = index + u64(done), block = here >> 6;
        const int lead = int(here & 63);
        const i64 left = count - done;
        const char *at[3] = {from[0] + 2 * done, from[1] + 2 * done, from[2] + 2 * done};
        if (lead == 0 && left >= panel && are_near(random.near, block, 4)) {
            const i64 near_panels = (0x100000000ll - u32(8 * block)) / 32;
            const i64 panels = left / panel < near_panels ? left / panel : near_panels;
            round_near_panels<Operation>(at, to + 2 * done, block, panels, random.near, rounding);
            length = panel * panels;
            continue;
        }
        // A panel of which `length` elements from `lead` on are asked for; the others are 0.
        length = left < panel - lead ? left : panel - lead;
        random.fill(block, words);
        for (u32v &lanes : words.words) lanes &= rounding.random_mask;
        alignas(64) char part[3][2 * panel] = {}, result[2 * panel];
        for (int i = 0; i < 3; ++i) __builtin_memcpy(part[i] + 2 * lead, at[i], 2 * length);
        const char *const parts[3] = {part[0], part[1], part[2]};
        round_half_panel<Operation>(parts, words, result, rounding);
        __builtin_memcpy(to + 2 * done, result + 2 * lead, 2 * length);
    }
}

// A magnitude's place in the sum.
inline i64 place_of(float x, u32 clamp) {
    const u32 bits = bit_cast<u32>(x) & 0x7fffffffu, size = bits < clamp ? bits : clamp;
    return size < least_half ? i64(bit_cast<float>(size) * per_quantum) : i64(size * place + code_start);
}

// Of how many float16 numbers, the operands of an operation on one, the float32 is off by more than is reckoned with.
template <class Operation>
i64 halves_beyond_margin() {
    alignas(64) float x[lanes32], near[lanes32];
    alignas(64) double exact[lanes32];
    i64 misses = 0;
    for (int first = 0; first < 1 << 16; first += lanes32) {
        u16v codes;
        for (int i = 0; i < lanes32; ++i) codes[i] = u16(first + i);
        const f32v numbers = half_to_real(codes);
        store(x, numbers), store(near, Operation::of(numbers, numbers, numbers));
        Operation::settle(x, x, x, exact);
        for (int i = 0; i < lanes32; ++i) {
            if (near[i] != near[i] || exact[i] != exact[i]) {
                misses += near[i] == near[i] || exact[i] == exact[i];
                continue;
            }
            const i64 off = place_of(near[i], 0x47800000u) - place_of(float(exact[i]), 0x47800000u);
            const bool same_sign = !((bit_cast<u32>(near[i]) ^ bit_cast<u32>(float(exact[i]))) >> 31);
            misses += !same_sign || (off < 0 ? -off : off) > i64(place * margin_of(Operation::steps));
        }
    }
    return misses;
}

// Elements [begin, end) of all operands, which are `halves_only`, stochastically; `out` says how.
inline void run_random_halves(const Operands &job, RandomHalfRun run, const ConvertJob &out, i64 begin, i64 end) {
    const char *operand[3];
    for (int i = 0; i < 3; ++i) operand[i] = job.operand[i < job.operands ? i : 0].data + 2 * begin;
    const Rounding &r = out.rounding;
    const u32 clamp = r.over_pos == r.format.max_code ? 0x477fe000u : 0x47800000u;
    const u32 mask = ((1u << 16) - (1u << (16 - r.random_bits))) * 0x10001u;
    run(operand, static_cast<char *>(out.to) + 2 * begin, out.offset + u64(begin), end - begin, out.key,
        {clamp, mask, r});
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
