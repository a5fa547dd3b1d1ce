// Operations on float16 arrays with float16 results, rounded stochastically: in registers from one to the other, the
// random words too.
//
// The code of a magnitude, with 16 bits below it, is a linear function of its float32's bits (or, for subnormal
// results, of the number itself); stochastic rounding adds the random bits to that and cuts the sum off. An operation
// gives a float32 within so many places of its result: where the sum is at least that far from the next code, the
// result itself, whatever it is, rounds to the same. The few others are found in full, as doubles.
#ifndef LOWPREC_RANDOM_HALVES_H
#define LOWPREC_RANDOM_HALVES_H

#include "elementwise/any_halves.h"
#include "elementwise/half_runs.h"
#include "elementwise/open_halves.h"
#include "isa/widths.h"
#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// Fetches what comes a kilobyte later. Turning back to open lanes throws the processor's own fetching off its course:
// without this, functions of arrays beyond the caches took an eighth longer.
LP_INLINE void prefetch_beyond(const char *const *from, const char *to, int place) {
    constexpr int ahead = 1 << 10;
    __builtin_prefetch(from[0] + place + ahead);
    __builtin_prefetch(from[1] + place + ahead);
    __builtin_prefetch(to + place + ahead);
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

    // Of the lanes of `usual`, those of codes between 2^-12 and the largest: others may not be normal numbers.
    LP_INLINE __mmask16 still_usual(__mmask16 usual, __m256i codes) const {
        return _mm256_mask_test_epi16_mask(usual, _mm256_add_epi16(codes, beside_normal), exponent);
    }

    // Takes the lanes with unusual results out of those of each of the two vectors.
    template <class Operation>
    LP_INLINE void round(const char *a, const char *b, const char *c, u32v random, char *to, __mmask16 (&usual)[2],
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
        usual[0] = still_usual(usual[0], code0);
        usual[1] = still_usual(usual[1], code1);
        if (!Operation::steps) return;
        const __m512i tails = _mm512_mask_shuffle_epi8(sum0, upper_bytes, sum1, lower_words);
        _store_mask32((__mmask32 *)&open, _mm512_testn_epi16_mask(_mm512_add_epi16(tails, more), far));
    }

    // The panel of which the first element lies at `first`; returns the pairs of which some results are unusual.
    template <class Operation>
    LP_INLINE u32 round_panel(const char *const *from, int first, const u32v (&words)[8], char *to, u32 *open) const {
        __mmask16 usual[2] = {0xffff, 0xffff};
#pragma GCC unroll 8
        for (int pair = 0; pair < 8; ++pair) {
            const int at = first + 64 * pair;
            prefetch_beyond(from, to, at);
            round<Operation>(from[0] + at, from[1] + at, from[2] + at, words[pair], to + at, usual, open[pair]);
        }
        return __builtin_expect((usual[0] & usual[1]) == 0xffff, 1) ? 0 : unusual_pairs(to + first);
    }

    // The pairs of a panel of which some results are unusual.
    LP_INLINE u32 unusual_pairs(const char *to) const {
        u32 pairs = 0;
        for (int pair = 0; pair < 8; ++pair) {
            const __mmask16 usual = still_usual((__mmask16)-1, load<__m256i>(to + 64 * pair));
            pairs |= u32(still_usual(usual, load<__m256i>(to + 64 * pair + 32)) != 0xffffu) << pair;
        }
        return pairs;
    }
};

// Pairs of which some results are unusual, to be rounded anew together: the processor then mistakes one end of a loop
// and not one for each panel.
struct UnusualPairs {
    alignas(64) u32 pair[8 * panels_at_once + 8];
    int number = 0;

    // Of a panel, as bits.
    LP_INLINE void note(int of_panel, u32 pairs) {
        const __m256i places =
            _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * of_panel));
        store(pair + number, _mm256_maskz_compress_epi32((__mmask8)pairs, places));
        number += __builtin_popcount(pairs);
    }

    // Their results, whatever they are.
    template <class Operation>
    [[gnu::noinline]] void round(const char *const *from, const PanelWords *random, char *to, const AnyHalves &any,
                                 OpenLanes &open) {
        for (int i = 0; i < number; ++i) {
            const int at = 64 * int(pair[i]);
            const u32v words = random[pair[i] / 8].words[pair[i] % 8];
            open.of_pair[pair[i]] = any.round<Operation>(from[0] + at, from[1] + at, from[2] + at, words, to + at);
        }
        number = 0;
    }
};

// A panel, with the words in memory.
template <class Operation>
void round_half_panel(const char *const *from, const PanelWords &random, char *to, const HalfRounding &rounding) {
    OpenHalves<Operation> open;
    OpenLanes lanes;
    UnusualPairs unusual;
    unusual.note(0, 0xff);
    unusual.round<Operation>(from, &random, to, AnyHalves(rounding), lanes);
    note_open(from, &random, lanes, 1, to, open, rounding);
    open.settle(1, rounding);
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
    OpenLanes lanes;
    UnusualPairs unusual;
    const bool apart = lies_apart(from, to, 2 * panel * panels);
    PanelWords random[panels_at_once];
    alignas(64) char results[2 * panel * panels_at_once];
    const char *at[3] = {from[0], from[1], from[2]};
    bool usually = true;
    for (int here; panels > 0; panels -= here) {
        here = panels < panels_at_once ? int(panels) : panels_at_once;
        char *const out = apart ? to : results;
        for (int p = 0; p < here; ++p, block += 4) {
            const int first = 2 * panel * p;
            u32v words[8];
            block_words<4>(block, near, words);
            if (rounding.random_mask != ~0u)
                for (u32v &drawn : words) drawn &= rounding.random_mask;
            if (Operation::steps) __builtin_memcpy(&random[p], words, sizeof words);
            u32 *const open_lanes = lanes.of_pair + 8 * p;
            const u32 left = usually ? normal.round_panel<Operation>(at, first, words, out, open_lanes) : 0xff;
            if (__builtin_expect(left == 0, 1)) continue;
            if (!Operation::steps) __builtin_memcpy(&random[p], words, sizeof words);
            unusual.note(p, left);
        }
        usually = !usually || unusual.number <= 4 * here;  // where most are unusual the next are likely to be, too
        unusual.round<Operation>(at, random, out, any, lanes);
        if (Operation::steps) note_open(at, random, lanes, here, out, open, rounding);
        if (!apart) {
            open.settle(1, rounding);
            __builtin_memcpy(to, results, 2 * panel * here);
        }
        for (const char *&operand : at) operand += 2 * panel * here;
        to += 2 * panel * here;
    }
    open.settle(1, rounding);
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
                open.settle(open.most, rounding);
            }
    }
    open.settle(1, rounding);
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
    run(operand, static_cast<char *>(out.to) + 2 * begin, out.offset + u64(begin), end - begin, out.key, {clamp, mask});
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
