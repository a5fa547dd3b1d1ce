// How a GPU's threads go through elements that may draw random bits: 8 of a block of 64, which share a counter.
#ifndef LOWPREC_UNITS_CUH
#define LOWPREC_UNITS_CUH

#include "lowprec/random.h"
#include "lowprec/round_fast.h"
#include "storage.cuh"

namespace lowprec {
inline namespace LP_ISA {

// Random bits of the 8 elements that belong to counter `l` of a block of 64: pair j is elements 16 j + 2 l
// and the next. Narrow draws need one Philox call, wide ones (17 to 32 bits: blocks of 32 whole words) two.
template <class E>
LP_INLINE void draw(u64 block, u32 l, int bits, u64 key, E (&random)[8]) {
    if (sizeof(E) == 4 || bits <= 16) {  // 32-bit lanes have room for 16 bits only
        constexpr int lift = Carrier<E>::fraction - 16;
        u64 counter = 8 * block + l;
        Words w = philox<10>(u32(tag_rounding) << 24, u32(counter), u32(counter >> 32), 0, key);
        for (int i = 0; i < 8; ++i) {
            u32 word = w.word[2 * (i >> 2) + (i & 1)];
            random[i] = E((i >> 1) & 1 ? word >> 16 : word & 0xffffu) << lift;
        }
        return;
    }
    for (int half = 0; half < 2; ++half) {
        u64 counter = 8 * (2 * block + half) + l;
        Words w = philox<10>(u32(tag_rounding_wide) << 24, u32(counter), u32(counter >> 32), 0, key);
        for (int i = 0; i < 4; ++i) random[4 * half + i] = w.word[i];
    }
}

// The random bits of one index (lowprec.backends.reference.random.rounding_bits). Those of neighbouring indices share a
// counter, which is kept.
struct IndexDraws {
    u64 key, held = ~u64(0);
    int bits;
    Words words;

    LP_INLINE IndexDraws(u64 k, int b) : key(k), bits(b) {}
    LP_INLINE u64 operator()(u64 index) {
        const bool narrow = bits <= 16;
        const u32 p = u32(index) & (narrow ? 63 : 31);
        const u64 counter = 8 * (index >> (narrow ? 6 : 5)) + ((p >> 1) & 7);
        if (counter != held)
            words = philox<10>(u32(narrow ? tag_rounding : tag_rounding_wide) << 24, u32(counter), u32(counter >> 32),
                               0, key);
        held = counter;
        const bool high = (p >> (narrow ? 5 : 4)) & 1;
        const u32 even = high ? words.word[2] : words.word[0], odd = high ? words.word[3] : words.word[1];
        const u32 word = p & 1 ? odd : even;
        return narrow ? u64((p >> 4) & 1 ? word >> 16 : word & 0xffffu) << 16 : word;
    }
};

// body(i, random bits) of every element i, whose index among the random bits is offset + i.
template <class E, int mode, class Body>
LP_INLINE void for_elements(i64 count, u64 key, u64 offset, int bits, const Body &body) {
    const i64 lead = i64(offset & 63);  // how far into its block the first element lies
    const u64 units = (u64(lead + count + 63) >> 6) << 3, step = u64(gridDim.x) * blockDim.x;
    for (u64 unit = u64(blockIdx.x) * blockDim.x + threadIdx.x; unit < units; unit += step) {
        const u32 l = u32(unit) & 7;
        const i64 first = i64((unit >> 3) * 64 + 2 * l) - lead;
        E random[8] = {};
        if constexpr (mode == stochastic) draw((offset >> 6) + (unit >> 3), l, bits, key, random);
        for (int n = 0; n < 8; ++n) {
            const i64 i = first + 16 * (n >> 1) + (n & 1);
            if (i >= 0 && i < count) body(i, random[n]);
        }
    }
}

// 64-bit integers have more bits than any carrier.
template <int mode>
LP_INLINE u64 round_whole(i64 x, u64 random, const Rounder<u64> &k) {
    return round_integer<mode>(x < 0 ? 0 - u64(x) : u64(x), u64(x < 0), random, k);
}
template <int mode>
LP_INLINE u64 round_whole(u64 x, u64 random, const Rounder<u64> &k) {
    return round_integer<mode>(x, 0, random, k);
}

// One element: stored bits in, stored bits out. `refused` becomes nonzero where a NaN meets a format that has none.
template <class E, class From, class To, int mode, bool values>
struct Converter {
    typedef typename From::stored In;
    typedef typename To::stored Out;
    Rounder<E> rounder, carrier;
    Decoder<E> source;

    LP_INLINE explicit Converter(const Conversion &job) {
        rounder = make_rounder<E>(job.rounding, values);
        carrier = make_rounder<E>(job.carrier, false);
        source = make_decoder<E>(job.source);
    }

    LP_INLINE Out operator()(In x, E random, u32 &refused) const {
        if constexpr (From::is_whole) {
            return To::template store<values>(round_whole<mode>(x, random, rounder), carrier);
        } else {
            E bits = From::load(x, source);
            refused |= (bits & Carrier<E>::magnitude) > Carrier<E>::infinity;
            return To::template store<values>(round_bits<mode, values>(bits, random, rounder), carrier);
        }
    }
};

// The same by round_fast.h, for what it serves: 16 random bits stand in the low half of `random`.
template <class From, class To, int mode, bool values, int way, int end>
struct FastConverter {
    typedef typename From::stored In;
    typedef typename To::stored Out;
    FastRounder rounder;
    Decoder<u32> source;

    LP_INLINE explicit FastConverter(const Conversion &job) {
        rounder = make_fast_rounder(job.rounding, values);
        source = make_decoder<u32>(job.source);
    }

    LP_INLINE Out operator()(In x, u32 random, u32 &refused) const {
        const u32 bits = From::load(x, source);
        refused |= (bits & Carrier<u32>::magnitude) > Carrier<u32>::infinity;
        const u32 up = mode == stochastic ? ((random << 16) & rounder.random_mask) >> rounder.random_shift : 0;
        return To::template store<values>(fast_round<mode, way, end, values>(bits, up, rounder), Rounder<u32>());
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
