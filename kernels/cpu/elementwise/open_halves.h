// Stochastic rounding of results that are known to within some places of float32, to float16: where that leaves the
// code open, and what the exact results, as doubles, make of those.
#ifndef LOWPREC_OPEN_HALVES_H
#define LOWPREC_OPEN_HALVES_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr u32 least_half = 0x38800000u;  // float32 bits of 2^-14, below which results are subnormal
constexpr u32 code_start = 0x40000000u;  // what its bits, times 8, lack of its code above 16 bits
constexpr float per_quantum = 0x1p+40f;  // 2^-24 is 2^16 of these
constexpr u32 place = 8;                 // of float32, in the sum

struct HalfRounding {
    u32 clamp;        // float32 bits of what stands for all beyond: 65504, or 65536 for infinity
    u32 random_mask;  // of the bits drawn of each half-word, in both
};

// The code of a double that is a number. Without branches: the next is of another size, and nobody knows which.
LP_INLINE u16 random_half_code(double x, u32 half_word, const HalfRounding &k) {
    const u64 bits = bit_cast<u64>(x), size = bits & ~(u64(1) << 63);
    const double most = bit_cast<float>(k.clamp),
                 clamped = bit_cast<double>(size) < most ? bit_cast<double>(size) : most;
    const u64 normal = (bit_cast<u64>(clamped) >> 26) - (u64(1023 - 15) << 26);
    const u64 subnormal = u64(i64((clamped < 0x1p-14 ? clamped : 0.0) * double(per_quantum)));
    const u64 sum = (clamped < 0x1p-14 ? subnormal : normal) + half_word;
    return u16(sum >> 16 | (bits >> 63) << 15);
}

// Operation: of(a, b, c), float32 lanes; `steps`, how many places of float32 that may be off (0: it is not), NaN where
// the result is; settle(a, b, c, to), lanes32 results as doubles that round as the exact ones.

// A power of two that is no less than the error, in places of float32; counting subnormals and cutting off cost less
// than a place.
constexpr u32 margin_of(u32 steps) {
    u32 margin = 1;
    while (margin < steps) margin *= 2;
    return steps ? margin : 0;
}

// Elements of which the exact result decides, to be found together: their operands' codes, half-words and places.
template <class Operation>
struct OpenHalves {
    static constexpr int most = 4 * lanes32;
    alignas(64) u16 code[3][most + 2 * lanes32] = {};
    u16 random[most + 2 * lanes32];
    char *to[most + 2 * lanes32];
    int number = 0;

    void note(const char *const *from, int element, u32 half_word, char *result) {
        for (int i = 0; i < 3; ++i) __builtin_memcpy(&code[i][number], from[i] + 2 * element, 2);
        random[number] = u16(half_word);
        to[number++] = result + 2 * element;
    }

    // Where there are `many`.
    LP_INLINE void settle(int many, const HalfRounding &rounding) {
        if constexpr (Operation::steps != 0)
            if (number >= many) settle_all(rounding);
    }

    [[gnu::noinline]] void settle_all(const HalfRounding &rounding) {
        alignas(64) float x[3][lanes32];
        alignas(64) double result[lanes32];
        u16 rounded[lanes32];
        for (int first = 0; first < number; first += lanes32) {
            for (int i = 0; i < 3; ++i) store(x[i], half_to_real(load<u16v>(code[i] + first)));
            Operation::settle(x[0], x[1], x[2], result);
            for (int i = 0; i < lanes32; ++i) rounded[i] = random_half_code(result[i], random[first + i], rounding);
            for (int i = 0; i < lanes32 && first + i < number; ++i) store(to[first + i], rounded[i]);
        }
        number = 0;
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
