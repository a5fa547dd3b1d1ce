// What happens to a tile's sums after the chains: parts summed in stages, the last rounding, the stored result.
#ifndef LOWPREC_FINISH_H
#define LOWPREC_FINISH_H

#include "accumulate/steps_fast.h"
#include "isa/widths.h"

namespace lowprec {
inline namespace LP_ISA {

// A block of sums rounded with random words of Philox-10, those of one pair of `c3`'s.
template <int rows, int vectors>
LP_INLINE void round_block(float *sums, const Rounders &k, const WordPlace &place, u32 c3, int pair_number, int shift) {
    u32v words[2][rows][vectors];
    const Draws<10, rows, vectors> draws(place);
    pair_number ? draws.words(c3, words) : draws.first_words(c3, words);
    k.apply(sums, &words[pair_number][0][0], shift, rows * vectors, k);
}

// Sums of a few rows, each `vectors` vectors long, rounded under (tag, index).
__attribute__((noinline)) inline void round_rows(float *sums, i64 rows, i64 vectors, const Rounders &k, WordPlace place,
                                                 int tag, u32 index) {
    const bool random = k.mode == stochastic, wide = k.whole_words();
    if (!random) return k.apply(sums, nullptr, 0, rows * vectors, k);
    place.head = (place.head & 0xffffffu) | (u32(tag + (wide ? 1 : 0)) << 24);
    const u32 c3 = wide ? (index >> 1) << 3 : (index >> 2) << 3;
    const int pair_number = wide ? index & 1 : (index >> 1) & 1, shift = wide ? 0 : int(index & 1) * 16;
    if (rows == tile_rows && vectors == tile_vectors)
        return round_block<tile_rows, tile_vectors>(sums, k, place, c3, pair_number, shift);
    if (rows == tile_rows && vectors == 1) return round_block<tile_rows, 1>(sums, k, place, c3, pair_number, shift);
    const u32 row = place.row, column = place.column;
    for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < vectors; ++j) {
            place.row = row + u32(i);
            place.column = column + u32(j) * lanes32;
            round_block<1, 1>(sums + (i * vectors + j) * lanes32, k, place, c3, pair_number, shift);
        }
}

LP_INLINE u16v real_to_half_exact(f32v x) {
#if defined(__F16C__) && LP_VECTOR_BYTES == 64
    return (u16v)_mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__) && LP_VECTOR_BYTES == 32
    return (u16v)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    return __builtin_convertvector(bit_cast<u32v>(x), u16v);  // never called: has_half_instruction is false
#endif
}

#if defined(__F16C__)
constexpr bool has_half_instruction = true;
#else
constexpr bool has_half_instruction = false;
#endif

// Stores values that lie on the stored format's grid. Rows are read in whole vectors: up to lanes32 floats further.
struct Store {
    const Destination &out;
    Rounder<u32> rounder;
    bool half, bfloat;

    explicit Store(const Destination &target) : out(target), rounder(make_rounder<u32>(target.store, false)) {
        const Format &f = target.store.format;
        half =
            has_half_instruction && target.storage == coded16 && f.mantissa_bits == 10 && f.emin == -14 && f.inf_code;
        bfloat = target.storage == coded16 && f.mantissa_bits == 7 && f.emin == -126 && f.inf_code;
    }

    LP_INLINE u16v code16(f32v x) const {
        if (half) return real_to_half_exact(with_one_nan(x));
        return __builtin_convertvector(bit_cast<u32v>(with_one_nan(x)) >> 16, u16v);
    }

    template <class Code>
    void codes(const float *from, char *to, i64 count) const {
        const Rounder<u32> k = rounder;
        for (i64 i = 0; i < count; i += lanes32) {
            const u32v code = round_bits<nearest_even, false>(load<u32v>(from + i), u32v{}, k);
            if (out.column == sizeof(Code) && i + lanes32 <= count) {
                store_as(reinterpret_cast<Code *>(to) + i, code);
                continue;
            }
            for (int lane = 0; lane < lanes32 && i + lane < count; ++lane) {
                const Code c = Code(code[lane]);
                __builtin_memcpy(to + (i + lane) * out.column, &c, sizeof c);
            }
        }
    }

    // Every thread that meets one writes the same.
    void note_nan(const float *from, i64 count) const {
        for (i64 i = 0; i < count; ++i)
            if (from[i] != from[i]) __atomic_store_n(out.nan_met, true, __ATOMIC_RELAXED);
    }

    void row(const float *from, char *to, i64 count) const {
        i64 i = 0;
        if (out.nan_met) note_nan(from, count);
        if (out.storage == real32 && out.column == 4) {
            for (; i + lanes32 <= count; i += lanes32) store(to + 4 * i, with_one_nan(load<f32v>(from + i)));
            if (i < count) store_some(to + 4 * i, with_one_nan(load<f32v>(from + i)), count - i);
        } else if (out.storage == real32) {
            for (; i < count; ++i) store(to + i * out.column, with_one_nan(from[i]));
        } else if (out.storage == real64) {
            for (; i < count; ++i) store(to + i * out.column, with_one_nan(double(from[i])));
        } else if ((half || bfloat) && out.column == 2) {
            for (; i + lanes32 <= count; i += lanes32) store(to + 2 * i, code16(load<f32v>(from + i)));
            if (i < count) store_some(to + 2 * i, code16(load<f32v>(from + i)), count - i);
        } else if (out.item_bytes == 1) {
            codes<u8>(from, to, count);
        } else {
            codes<u16>(from, to, count);
        }
    }

    // Rows of `width` floats each.
    void rows(const float *from, i64 width, char *to, i64 rows, i64 count) const {
        if (!half || out.column != 2 || out.nan_met) {
            for (i64 i = 0; i < rows; ++i) row(from + i * width, to + i * out.row, count);
            return;
        }
        for (i64 i = 0; i < rows; ++i, from += width, to += out.row) {
            i64 j = 0;
            for (; j + lanes32 <= count; j += lanes32)
                store(to + 2 * j, real_to_half_exact(with_one_nan(load<f32v>(from + j))));
            if (j < count) store_some(to + 2 * j, real_to_half_exact(with_one_nan(load<f32v>(from + j))), count - j);
        }
    }
};

// The sums of parts in up to three stages. Every stage adds in float32, ascending, from its first member: all but the
// last sum runs of so many, the last sums what there is.
struct Stages {
    i64 parts, run;
    int count;
};

LP_INLINE void add_rows(float *sum, const float *part, i64 floats, bool first) {
    for (i64 i = 0; i < floats; i += lanes32)
        store(sum + i, first ? load<f32v>(part + i) : load<f32v>(sum + i) + load<f32v>(part + i));
}

// Takes part number `p` of sums, `floats` at a time, into one buffer of `room` floats per stage; the last part leaves
// the total in the last one. round(sums, index) rounds an intermediate result.
template <class Round>
inline void take_part(float *part, float *sums, i64 room, i64 p, i64 floats, const Stages &s, const Round &round) {
    i64 members = s.parts, first_index = 0;
    for (int stage = 0; stage < s.count; ++stage, sums += room) {
        const bool last_stage = stage == s.count - 1;
        const i64 run = last_stage ? members : s.run;
        add_rows(sums, part, floats, p % run == 0);
        if (last_stage || (p % run != run - 1 && p != members - 1)) return;
        p /= run;
        round(sums, u32(first_index + p));
        members = (members + run - 1) / run;
        first_index += members;
        part = sums;
    }
}

// Room for a tile's sums in every stage.
typedef float TileSums[3][tile_floats + lanes32];

// The same for a tile of `rows` x `vectors`.
__attribute__((noinline)) inline void take_part(float *part, TileSums &sums, i64 p, i64 rows, i64 vectors,
                                                const Stages &s, const Rounders &between, const WordPlace &place) {
    take_part(part, sums[0], tile_floats + lanes32, p, rows * vectors * lanes32, s, [&](float *at, u32 index) {
        if (between.active) round_rows(at, rows, vectors, between, place, tag_stage, index);
    });
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
