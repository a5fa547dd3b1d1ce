// Short cuts of round.h for values that stay in the carrier, as sums do: lanes of float32 or of float64, nearest-even
// or stochastic.
//
// The bits are those of round.h (the tests run both) for values up to the format's largest; what lies beyond,
// infinities and NaN go through round.h. Nearest: 2^mantissa quanta of the value's binade are added and subtracted
// again, which leaves whole quanta; subnormals only fix the binade. Stochastic: the format's last bit is one of the
// carrier's, so the random bits are added behind it, and what is behind it is cut off.
#ifndef LOWPREC_ROUND_GRID_H
#define LOWPREC_ROUND_GRID_H

#include "round.h"

namespace lowprec {
inline namespace LP_ISA {

// Formats and modes that all short cuts are made for.
LP_INLINE bool is_common(const Rounding &r) {
    const Format &f = r.format;
    return f.zero && f.subnormals && f.sign_bit && !r.flush && (r.mode == nearest_even || r.mode == stochastic);
}

LP_INLINE int largest_exponent(const Format &f) { return f.emin - 1 + int(f.max_code >> f.mantissa_bits); }

// Whether the short cuts below hold in lanes of E. A quantum and 2^mantissa quanta must be normal numbers in every
// binade, random bits and one that says what was lost must fit behind the last bit; and without mantissa bits a tie
// would go to the even number of quanta, where round.h takes the even exponent.
template <class E>
LP_INLINE bool has_grid(const Rounding &r) {
    typedef Carrier<E> C;
    const Format &f = r.format;
    const int random_room = sizeof(E) == 4 ? C::fraction : C::mantissa - 1 - f.mantissa_bits;
    return is_common(r) && f.mantissa_bits >= 1 && f.mantissa_bits <= C::mantissa - 10 &&
           r.random_bits <= random_room && f.emin - f.mantissa_bits >= 17 - C::bias &&
           largest_exponent(f) + C::mantissa - f.mantissa_bits < C::bias;
}

// Whether a format is float32 with fewer mantissa bits, subnormals included: its codes are the top of float32's bits.
LP_INLINE bool is_top_of_float32(const Rounding &r) {
    const Format &f = r.format;
    return is_common(r) && f.mantissa_bits >= 1 && f.mantissa_bits <= 13 && r.random_bits <= 16 && f.emin == -126 &&
           largest_exponent(f) == 127 && f.negative_zero;
}

// What the short cuts need of a format, as bits of the carrier.
template <class E>
struct Grid {
    E largest, smallest_normal;
    E magic;      // brings the exponent field of a binade to that of 2^mantissa quanta
    E zero_sign;  // the sign a zero result keeps: none where the format has no -0
    E random_mask;
    int mantissa_bits, drop;  // drop: bits of the carrier behind the format's last

    explicit LP_INLINE Grid(const Rounder<E> &r)
        : largest(decode_finite(r.max_code, r.decoder)),
          smallest_normal(r.base_min + Carrier<E>::one),
          zero_sign(r.negative_zero ? E(1) << (Carrier<E>::width - 1) : 0),
          random_mask(r.random_mask),
          mantissa_bits(r.mantissa_bits),
          drop(Carrier<E>::mantissa - r.mantissa_bits) {
        magic = E(drop) << Carrier<E>::mantissa;
    }
};

// 2^e of the value's binade, but at least the smallest normal's, with the value's sign.
template <class L>
LP_INLINE L signed_binade(L bits, typename Lanes<L>::element smallest_normal) {
    typedef Carrier<typename Lanes<L>::element> C;
    const L size = bits & C::infinity;
    return larger(size, splat<L>(smallest_normal)) | (bits & ~splat<L>(C::magnitude));
}

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
LP_INLINE u32v signed_binade(u32v bits, u32 smallest_normal) {
    const f32v field = bit_cast<f32v>(bits & 0xff800000u), least = bit_cast<f32v>(u32v{} + smallest_normal);
    const int larger_magnitude_firsts_sign = 3, current_rounding = 4;
    return bit_cast<u32v>((f32v)__builtin_ia32_rangeps512_mask(field, least, larger_magnitude_firsts_sign, f32v{},
                                                               (unsigned short)-1, current_rounding));
}
#endif

// Nearest-even, of finite values up to the largest.
template <class L>
LP_INLINE L nearest_on_grid(L bits, const Grid<typename Lanes<L>::element> &g) {
    typedef typename Lanes<L>::real R;
    const R x = bit_cast<R>(bits), quanta = bit_cast<R>(signed_binade(bits, g.smallest_normal) + g.magic);
    return bit_cast<L>((x + quanta) - quanta) | (bits & g.zero_sign);
}

// Stochastic, of normal values up to the largest and of zeros, which keep their sign: `up` is less than a quantum.
template <class L>
LP_INLINE L stochastic_on_grid(L bits, L up, const Grid<typename Lanes<L>::element> &g) {
    typedef typename Lanes<L>::element E;
    return (bits + up) & ~((E(1) << g.drop) - 1);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
