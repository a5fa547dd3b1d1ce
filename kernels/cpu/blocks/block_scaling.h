// Vectors of values brought to their elements' range: times or over the scale of their block.
#ifndef LOWPREC_BLOCK_SCALING_H
#define LOWPREC_BLOCK_SCALING_H

#include "blocks/block_values.h"
#include "lowprec/exact.h"

namespace lowprec {
inline namespace LP_ISA {

// The factor's type: a divisor may need more bits than the values that it divides.
template <class S, int scaling>
struct FactorOf {
    typedef S type;
};
template <>
struct FactorOf<float, by_wide_divisor> {
    typedef double type;
};

// Doubles to floats, rounded to odd: where the nearest double tells on which side of a number of few bits an exact
// quotient lies, so does the result.
template <class D, class B, class F>
LP_INLINE F odd_floats(D q) {
    constexpr u64 low = (1ull << 29) - 1;
    B bits = bit_cast<B>(q);
    B sticky = (bits & low) != 0 ? B{} + (low + 1) : B{};
    return __builtin_convertvector(bit_cast<D>((bits & ~low) | sticky), F);
}

// x / d of doubles, rounded to odd.
LP_INLINE double odd_quotient(double x, double d) {
    const double q = x / d, rest = __builtin_fma(-q, d, x);
    const int inexact = finite(rest) & (q != 0);
    return inexact ? to_odd(q, rest) : q;
}

// Values of type R by factors to scaled values of type S, a vector at a time.
template <class R, class S, int scaling, bool guard>
struct BlockScaler {
    typedef typename FactorOf<S, scaling>::type D;
    static constexpr int lanes = LP_VECTOR_BYTES / int(sizeof(D));
    typedef typename VectorOf<R, lanes>::type Values;
    typedef typename VectorOf<S, lanes>::type Results;
    typedef typename VectorOf<D, lanes>::type Factors;
    typedef typename Carried<S>::bits E;
    typedef typename VectorOf<E, lanes>::type Bits;

    static LP_INLINE Results scaled(Values x, Factors f) {
        if constexpr (scaling == by_factor) return __builtin_convertvector(x, Results) * f;
        if constexpr (scaling == by_divisor) return __builtin_convertvector(x, Results) / f;
        if constexpr (scaling == by_wide_divisor) {
            return odd_floats<Factors, typename VectorOf<u64, lanes>::type, Results>(
                __builtin_convertvector(x, Factors) / f);
        }
        Results q = {};
        for (int i = 0; i < lanes; ++i) q[i] = odd_quotient(double(x[i]), double(f[i]));
        return q;
    }

    // Finite values but zero stay so: what left the range becomes the smallest or the largest number.
    static LP_INLINE Results kept_in_range(Results y, Values x) {
        typedef Carrier<E> C;
        const Bits bits = bit_cast<Bits>(y), size = bits & C::magnitude, sign = bits ^ size;
        const Bits from = bit_cast<Bits>(__builtin_convertvector(x, Results)) & C::magnitude;
        Bits kept = (from != 0) & (size < C::one) ? Bits{} + C::one : size;
        kept = (from < C::infinity) & (size == C::infinity) ? Bits{} + Carried<S>::largest : kept;
        return bit_cast<Results>(kept | sign);
    }

    static LP_INLINE Results one(Values x, Factors f) {
        const Results y = scaled(x, f);
        if constexpr (guard) return kept_in_range(y, x);
        return y;
    }

    // Whole blocks of 32 or of 16, one factor each: a size that the compiler knows.
    static void blocks(const R *x, const D *factors, S *to, i64 count, i64 size) {
        if (size == 32)
            for (i64 i = 0; i < count; ++i) run_of(x + 32 * i, factors[i], to + 32 * i, 32);
        else
            for (i64 i = 0; i < count; ++i) run_of(x + 16 * i, factors[i], to + 16 * i, 16);
    }

    // A run with one factor.
    static void run(const R *x, D factor, S *to, i64 count) { run_of(x, factor, to, count); }

    static LP_INLINE void run_of(const R *x, D factor, S *to, i64 count) {
        const Factors f = factor - Factors{};
        i64 i = 0;
        for (; i + lanes <= count; i += lanes) {
            Values v;
            __builtin_memcpy(&v, x + i, sizeof v);
            const Results y = one(v, f);
            __builtin_memcpy(to + i, &y, sizeof y);
        }
        if (i < count) rest(x + i, f, to + i, count - i);
    }

    // Every value with a factor of its own.
    static void columns(const R *x, const D *factors, S *to, i64 count) {
        i64 i = 0;
        for (; i + lanes <= count; i += lanes) {
            Values v;
            Factors f;
            __builtin_memcpy(&v, x + i, sizeof v);
            __builtin_memcpy(&f, factors + i, sizeof f);
            const Results y = one(v, f);
            __builtin_memcpy(to + i, &y, sizeof y);
        }
        if (i < count) {
            Factors f = Factors{} + 1;
            __builtin_memcpy(&f, factors + i, (count - i) * sizeof(D));
            rest(x + i, f, to + i, count - i);
        }
    }

    static void rest(const R *x, Factors f, S *to, i64 count) {
        Values v = {};
        __builtin_memcpy(&v, x, count * sizeof(R));
        const Results y = one(v, f);
        __builtin_memcpy(to, &y, count * sizeof(S));
    }
};

// How a job's values are scaled: the functions of one BlockScaler.
template <class R, class S, class D>
struct ScalingLoops {
    void (*blocks)(const R *x, const D *factors, S *to, i64 count, i64 size);
    void (*run)(const R *x, D factor, S *to, i64 count);
    void (*columns)(const R *x, const D *factors, S *to, i64 count);
};

template <class R, class S, int scaling>
ScalingLoops<R, S, typename FactorOf<S, scaling>::type> scaling_loops(bool guard) {
    typedef BlockScaler<R, S, scaling, true> Guarded;
    typedef BlockScaler<R, S, scaling, false> Plain;
    if (guard) return {Guarded::blocks, Guarded::run, Guarded::columns};
    return {Plain::blocks, Plain::run, Plain::columns};
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
