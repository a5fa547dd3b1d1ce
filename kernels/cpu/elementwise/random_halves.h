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
#include "isa/widths.h"
#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr u32 least_half = 0x38800000u;  // float32 bits of 2^-14, below which results are subnormal
constexpr u32 code_start = 0x40000000u;  // what its bits, times 8, lack of its code above 16 bits
constexpr float per_quantum = 0x1p+40f;  // 2^-24 is 2^16 of these
constexpr u32 place = 8;                 // of float32, in the sum

struct HalfRounding {
    u32 clamp;        // float32 bits of what stands for all beyond: 65504, or 65536 for infinity
    u32 random_mask;  // of the bits drawn of each half-word, in both
    Rounding rounding;
};

// Operation: of(a, b, c), float32 lanes; `steps`, how many places of float32 that may be off (0: it is not), NaN where
// the result is; settle(a, b, c, to), lanes32 results as doubles that round as the exact ones.

// A power of two that is no less than the error, in the sum; counting subnormals and cutting off cost less than a
// place.
constexpr u32 margin_of(u32 steps) {
    u32 margin = 1;
    while (margin < place * steps) margin *= 2;
    return steps ? margin : 0;
}

// The results of the lanes `open`, with their random half-words, to their places.
template <class Operation>
[[gnu::noinline]] void settle_lanes(f32v a, f32v b, f32v c, u32v random, u32 open, char *to, const HalfRounding &k) {
    alignas(64) float x[3][lanes32];
    alignas(64) double result[lanes32];
    store(x[0], a), store(x[1], b), store(x[2], c);
    Operation::settle(x[0], x[1], x[2], result);
    const Rounder<u64> rounder = make_rounder<u64>(k.rounding, false);
    for (; open; open &= open - 1) {
        const int lane = __builtin_ctz(open);
        const u64 code = round_bits<stochastic, false>(bit_cast<u64>(result[lane]), u64(random[lane]) << 16, rounder);
        store(to + 2 * lane, u16(code));
    }
}

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// Constants that stay in registers.
struct HalfLanes {
    __m512i clamp, least, start, upper_words, odd;

    explicit HalfLanes(const HalfRounding &k) {
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
};

template <class Operation>
LP_INLINE void round_halves(const char *a, const char *b, const char *c, u32v random, char *to, const HalfLanes &k,
                            const HalfRounding &rounding) {
    constexpr u32 margin = margin_of(Operation::steps);
    const f32v a0 = half_to_real(load<u16v>(a)), a1 = half_to_real(load<u16v>(a + 32));
    const f32v b0 = half_to_real(load<u16v>(b)), b1 = half_to_real(load<u16v>(b + 32));
    const f32v c0 = half_to_real(load<u16v>(c)), c1 = half_to_real(load<u16v>(c + 32));
    const __m512 x0 = (__m512)Operation::of(a0, b0, c0), x1 = (__m512)Operation::of(a1, b1, c1);
    const __m512i words = (__m512i)random;
    const __m512 size0 = _mm512_range_ps(x0, (__m512)k.clamp, 2 | 8);  // least magnitude, sign cleared
    const __m512 size1 = _mm512_range_ps(x1, (__m512)k.clamp, 2 | 8);
    __m512i y0 = _mm512_slli_epi32((__m512i)size0, 3), y1 = _mm512_slli_epi32((__m512i)size1, 3);
    const __mmask16 nan = _mm512_cmp_ps_mask(x0, x1, _CMP_UNORD_Q);
    const __m512 smaller_size = _mm512_maskz_min_ps((__mmask16)-1, size0, size1);
    if (_mm512_cmp_ps_mask(smaller_size, (__m512)k.least, _CMP_LT_OQ)) {
        const __m512 scale = _mm512_set1_ps(per_quantum);
        const __mmask16 small0 = _mm512_cmp_ps_mask(size0, (__m512)k.least, _CMP_LT_OQ);
        const __mmask16 small1 = _mm512_cmp_ps_mask(size1, (__m512)k.least, _CMP_LT_OQ);
        y0 = _mm512_mask_sub_epi32(y0, small0, _mm512_cvttps_epi32(_mm512_mul_ps(size0, scale)), k.start);
        y1 = _mm512_mask_sub_epi32(y1, small1, _mm512_cvttps_epi32(_mm512_mul_ps(size1, scale)), k.start);
    }
    const __m512i sum0 = _mm512_add_epi32(y0, _mm512_mask_blend_epi16(0x55555555, k.start, words));
    const __m512i sum1 =
        _mm512_add_epi32(y1, _mm512_mask_shuffle_epi8(k.start, 0x3333333333333333ull, words, k.upper_words));
    const __m512i sign = _mm512_set1_epi32(int(0x80000000u));
    const __m512i code0 = _mm512_ternarylogic_epi32(sign, (__m512i)x0, sum0, 0xCA);  // x where `sign` is set
    const __m512i code1 = _mm512_ternarylogic_epi32(sign, (__m512i)x1, sum1, 0xCA);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(code0, k.odd, code1));
    u32 open = 0;
    if (margin) {
        const __m512i far = _mm512_set1_epi32(int(0xffffu & ~(2 * margin - 1))), more = _mm512_set1_epi32(int(margin));
        open = _mm512_testn_epi32_mask(_mm512_add_epi32(sum0, more), far);
        open |= u32(_mm512_testn_epi32_mask(_mm512_add_epi32(sum1, more), far)) << 16;
    }
    if (__builtin_expect((open | nan) == 0, 1)) return;
    const u32 none = _mm512_cmp_ps_mask(x0, x0, _CMP_UNORD_Q) | u32(_mm512_cmp_ps_mask(x1, x1, _CMP_UNORD_Q)) << 16;
    _mm512_mask_storeu_epi16(to, none, _mm512_set1_epi16(0x7e00));
    open &= ~none;
    if constexpr (margin != 0) {
        if (open & 0xffff) settle_lanes<Operation>(a0, b0, c0, random & 0xffff, open & 0xffff, to, rounding);
        if (open >> 16) settle_lanes<Operation>(a1, b1, c1, random >> 16, open >> 16, to + 32, rounding);
    }
}

template <class Operation>
LP_INLINE void round_half_panel(const char *const *from, const PanelWords &random, char *to, const HalfLanes &k,
                                const HalfRounding &rounding) {
    for (int pair = 0; pair < 8; ++pair) {
        const int at = 64 * pair;
        round_halves<Operation>(from[0] + at, from[1] + at, from[2] + at, random.words[pair], to + at, k, rounding);
    }
}

#else

struct HalfLanes {
    explicit HalfLanes(const HalfRounding &) {}
};

template <class Operation>
LP_INLINE void round_halves(const char *a, const char *b, const char *c, u32v random, char *to, const HalfRounding &k) {
    constexpr u32 margin = margin_of(Operation::steps);
    const f32v p = half_to_real(load<u16v>(a)), q = half_to_real(load<u16v>(b)), r = half_to_real(load<u16v>(c));
    const f32v x = Operation::of(p, q, r);
    const u32v bits = bit_cast<u32v>(x), size = smaller(bits & 0x7fffffffu, splat<u32v>(k.clamp));
    const f32v small = bit_cast<f32v>(smaller(size, splat<u32v>(least_half)));
    const u32v count = (u32v) __builtin_convertvector(small * per_quantum, i32v);
    const u32v sum = (size < least_half ? count : (size << 3) + code_start) + random;
    const u32v code = (sum >> 16) | ((bits >> 16) & 0x8000u), one_nan = u32v{} + 0x7e00u;
    const i32v is_number = x == x;
    store_as(reinterpret_cast<u16 *>(to), is_number ? code : one_nan);
    if constexpr (margin != 0) {
        const u32v far = (sum + margin) & (0xffffu & ~(2 * margin - 1));
        const u32v open = (u32v)((i32v)(far == 0) & is_number);
        if (__builtin_expect(any_set(open), 0)) settle_lanes<Operation>(p, q, r, random, lanes_set(open), to, k);
    }
}

template <class Operation>
LP_INLINE void round_half_panel(const char *const *from, const PanelWords &random, char *to, const HalfLanes &,
                                const HalfRounding &rounding) {
    for (int pair = 0; pair < 8; ++pair)
        for (int half = 0; half < 2; ++half)
            for (int v = 0; v < vectors_per_block; ++v) {
                const int at = 2 * lanes32 * ((2 * pair + half) * vectors_per_block + v);
                const u32v words = random.words[pair * vectors_per_block + v];
                round_halves<Operation>(from[0] + at, from[1] + at, from[2] + at, half ? words >> 16 : words & 0xffffu,
                                        to + at, rounding);
            }
}

#endif

typedef void (*RandomHalfRun)(const char *const *from, char *to, u64 index, i64 count, u64 key,
                              const HalfRounding &rounding);

// Elements of which the first takes the random bits of index `index`.
template <class Operation>
void run_random_halves(const char *const *from, char *to, u64 index, i64 count, u64 key, const HalfRounding &rounding) {
    const HalfLanes lanes(rounding);
    const RandomBlocks random = random_blocks(key, index >> 6);
    PanelWords words;
    i64 done = 0;
    while (done < count) {
        const u64 here = index + u64(done), block = here >> 6;
        const int lead = int(here & 63);
        const i64 left = count - done, length = left < panel - lead ? left : panel - lead;
        random.fill(block, words);
        if (rounding.random_mask != ~0u)
            for (u32v &lanes : words.words) lanes &= rounding.random_mask;
        const char *at[3] = {from[0] + 2 * done, from[1] + 2 * done, from[2] + 2 * done};
        if (length == panel) {
            round_half_panel<Operation>(at, words, to + 2 * done, lanes, rounding);
        } else {  // a panel of which `length` elements from `lead` on are asked for; the others are 0
            alignas(64) char part[3][2 * panel] = {}, result[2 * panel];
            for (int i = 0; i < 3; ++i) __builtin_memcpy(part[i] + 2 * lead, at[i], 2 * length);
            const char *const parts[3] = {part[0], part[1], part[2]};
            round_half_panel<Operation>(parts, words, result, lanes, rounding);
            __builtin_memcpy(to + 2 * done, result + 2 * lead, 2 * length);
        }
        done += length;
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
            misses += !same_sign || (off < 0 ? -off : off) > i64(margin_of(Operation::steps));
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
