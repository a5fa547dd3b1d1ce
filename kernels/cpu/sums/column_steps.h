// One addition of a sum, in lanes of a vector: what the format makes of it.
//
// `add(a, b, words)` takes random words with their bits at the top of 32, in lanes of `Bits`.
#ifndef LOWPREC_COLUMN_STEPS_H
#define LOWPREC_COLUMN_STEPS_H

#include "accumulate/steps_fast.h"
#include "sums/column_job.h"
#include "sums/column_words.h"

namespace lowprec {
inline namespace LP_ISA {

struct NoWords {
    NoWords(int, u64) {}
};

struct Floats {
    typedef float Term;
    typedef float Real;
    typedef f32v Vector;
    typedef u32v Bits;
    static constexpr bool random = false, rounds = false, multiplies = true;
    typedef NoWords Words;
};

struct IeeeFloat : Floats {
    explicit IeeeFloat(const ColumnJob &) {}
    LP_INLINE f32v add(f32v a, f32v b, u32v) const { return a + b; }
    LP_INLINE f32v multiply_add(f32v a, f32v b, f32v sum, u32v) const { return fused(a, b, sum); }
};

#if defined(__F16C__)
// float16 sums of float16 numbers. Rounded to float32 first, a sum of two such numbers decides as the exact one does:
// 24 bits are twice 11 and two more (Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30, 1995).
struct IeeeHalf : Floats {
    static constexpr bool multiplies = false;
    explicit IeeeHalf(const ColumnJob &) {}
    LP_INLINE f32v add(f32v a, f32v b, u32v) const { return through_half(a + b); }
};
#endif

struct IeeeDouble {
    typedef double Term;
    typedef double Real;
    typedef f64v Vector;
    typedef u64v Bits;
    static constexpr bool random = false, rounds = false, multiplies = true;
    typedef NoWords Words;
    explicit IeeeDouble(const ColumnJob &) {}
    LP_INLINE f64v add(f64v a, f64v b, u64v) const { return a + b; }
    LP_INLINE f64v multiply_add(f64v a, f64v b, f64v sum, u64v) const { return sum + a * b; }
};

typedef u64v (*RoundedOnce)(u64v bits, u64v words, const Rounder<u64> &rounder);

// Not inlined: a class of its own for every mode took half a minute of compiling and bought nothing.
template <int mode>
[[gnu::noinline]] inline u64v rounded_once(u64v bits, u64v words, const Rounder<u64> &rounder) {
    return round_bits<mode, true, u64v>(bits, words, rounder);
}

inline RoundedOnce rounding_of(int mode) {
#define LP_CASE(m) \
    case m:        \
        return rounded_once<m>;
    switch (mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
}

// Any format: the exact sum as a double rounded to odd, then the rounding function.
template <class T, bool draws>
struct Rounded {
    typedef T Term;
    typedef double Real;
    typedef f64v Vector;
    typedef u64v Bits;
    static constexpr bool random = draws, rounds = true, multiplies = true;
    typedef std::conditional_t<random, ColumnWords, NoWords> Words;
    const Rounder<u64> rounder;
    const RoundedOnce once;
    const bool downward;
    explicit Rounded(const ColumnJob &job)
        : rounder(make_rounder<u64>(job.rounding, true)),
          once(rounding_of(job.rounding.mode)),
          downward(job.rounding.mode == down) {}
    LP_INLINE f64v add(f64v a, f64v b, u64v words) const {
        f64v sum = add_to_odd<f64v, u64v>(a, b);
        if (downward) {  // an exact sum of zero is -0, unless both terms are +0
            const u64v signs = (bit_cast<u64v>(a) | bit_cast<u64v>(b)) & (u64(1) << 63);
            sum = sum == 0.0 ? bit_cast<f64v>(signs) : sum;
        }
        return bit_cast<f64v>(once(bit_cast<u64v>(sum), words, rounder));
    }
    LP_INLINE f64v multiply_add(f64v a, f64v b, f64v sum, u64v words) const { return add(sum, a * b, words); }
};

// The short cuts of round_grid.h, in lanes of doubles, or, for narrow formats, of floats; other values (beyond the
// largest, infinite, NaN, and in stochastic mode below the normal ones) go through the rounding function.
template <class L, int mode>
struct OnGrid {
    typedef typename Lanes<L>::element E;
    typedef float Term;
    typedef typename Lanes<E>::real Real;
    typedef typename Lanes<L>::real Vector;
    typedef L Bits;
    static constexpr bool random = mode == stochastic, rounds = true, multiplies = true;
    typedef std::conditional_t<random, ColumnWords, NoWords> Words;
    const Rounder<E> rounder;
    const Grid<E> grid;

    explicit OnGrid(const ColumnJob &job) : rounder(make_rounder<E>(job.rounding, true)), grid(rounder) {}

    [[gnu::noinline]] Vector rounded(Vector sum, L words) const {
        return bit_cast<Vector>(round_bits<mode, true, L>(bit_cast<L>(sum), words, rounder));
    }
    LP_INLINE Vector add(Vector a, Vector b, L words) const {
        const Vector sum = add_to_odd<Vector, L>(a, b);
        const L bits = bit_cast<L>(sum), size = bits & Carrier<E>::magnitude;
        if constexpr (mode == nearest_even) {
            if (__builtin_expect(any_set((L)(size > grid.largest)), 0)) return rounded(sum, L{});
            return bit_cast<Vector>(nearest_on_grid(bits, grid));
        } else {
            const L tiny = (L)(size - 1 < grid.smallest_normal - 1);  // zero is not
            if (__builtin_expect(any_set((L)(size > grid.largest) | tiny), 0)) return rounded(sum, words);
            const int shift = grid.drop - Carrier<E>::fraction;  // the random bits stand at the top of 32
            const L up = words & grid.random_mask;
            const L code = stochastic_on_grid(bits, shift >= 0 ? up << shift : up >> -shift, grid);
            return bit_cast<Vector>(code) == Vector{} ? bit_cast<Vector>(code & grid.zero_sign)
                                                      : bit_cast<Vector>(code);
        }
    }
    LP_INLINE Vector multiply_add(Vector a, Vector b, Vector sum, L words) const { return add(sum, a * b, words); }
};

// float16 sums of float16 numbers, stochastically, in floats. What the float32 sum lost is exact too, and is counted
// together with the 13 bits behind the result's last in units of 2^-28 of that, as are the random bits.
struct RandomHalf : Floats {
    static constexpr bool random = true, rounds = true, multiplies = false;
    typedef ColumnWords Words;
    const OnGrid<u64v, stochastic> wide;
    explicit RandomHalf(const ColumnJob &job) : wide(job) {}

    LP_INLINE f32v add(f32v a, f32v b, u32v words) const {
        const f32v sum = a + b, of_b = sum - a, lost = (a - (sum - of_b)) + (b - of_b);
        const u32v bits = bit_cast<u32v>(sum), size = bits & Carrier<u32>::magnitude;
        if (__builtin_expect(any_set((u32v)(size >= 0x477fe000u)), 0)) return widely(a, b, words);  // 65504
        u32v rounded = (bits + (words >> 19)) & ~0x1fffu;
        if (any_set((u32v)(lost != 0))) {
            const i32v behind = i32v((bits & 0x1fffu) << 15) + lost_units(lost, bits) + i32v(words >> 4);
            rounded = (bits & ~0x1fffu) + u32v((behind >> 28) << 13);
        }
        return bit_cast<f32v>(size < 0x38800000u ? bits : rounded);  // below 2^-14 sums are whole
    }

  private:
    // Rounded down, of the magnitude: negative where the sum is too large.
    static LP_INLINE i32v lost_units(f32v lost, u32v bits) {
        const u32v units_of_one = (u32(127 + 38 + 127) << 23) - (bits & Carrier<u32>::infinity);  // 2^(15 + 23 - e)
        f32v units = lost * bit_cast<f32v>(units_of_one | (bits & 0x80000000u));
        // Below a power of two the last place is half as large.
        units = (i32v)(units < 0) & ((i32v)((bits & 0x7fffffu) == 0)) ? units + units : units;
        const i32v whole = __builtin_convertvector(units, i32v);
        return whole + (i32v)(__builtin_convertvector(whole, f32v) > units);
    }

    [[gnu::noinline]] f32v widely(f32v a, f32v b, u32v words) const {
        typedef u32 half __attribute__((vector_size(LP_VECTOR_BYTES / 2)));
        f32v sum;
        for (int i = 0; i < 2; ++i) {
            const int at = i * LP_VECTOR_BYTES / 2;
            const auto part = [at](const auto &x) { return reinterpret_cast<const char *>(&x) + at; };
            const f64v first = __builtin_convertvector(load<f32_pair>(part(a)), f64v),
                       second = __builtin_convertvector(load<f32_pair>(part(b)), f64v);
            const u64v drawn = __builtin_convertvector(load<half>(part(words)), u64v);
            const f32_pair found = __builtin_convertvector(wide.add(first, second, drawn), f32_pair);
            __builtin_memcpy(reinterpret_cast<char *>(&sum) + at, &found, sizeof found);
        }
        return sum;
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
