// A number format as a handful of numbers, the layouts of the two carriers, and decoding.
#ifndef LOWPREC_FORMAT_H
#define LOWPREC_FORMAT_H

#include "bits.h"

namespace lowprec {

// The numbers of lowprec.FloatFormat. Codes are magnitudes (without the sign bit) unless said otherwise.
struct Format {
    int exponent_bits, mantissa_bits;
    int emin;        // exponent of the smallest normal value, 2^emin
    int subnormals;  // 0: between 0 and 2^emin there is nothing
    int zero;        // 0: code 0 is 2^emin (e8m0)
    int negative_zero;
    u64 sign_bit;  // 0: unsigned
    u64 max_code;  // largest finite value; every code above it is special
    u64 inf_code;  // 0: no infinity
    u64 nan_code;  // whole code, sign included; ~0: no NaN
};

inline namespace LP_ISA {

// The carrier of a value while it is rounded: float32 in 32-bit lanes, float64 in 64-bit lanes.
template <class Element>
struct Carrier;
template <>
struct Carrier<u32> {
    static constexpr int mantissa = 23, bias = 127, width = 32;
    static constexpr int headroom = 7;   // left shift that brings the hidden bit to bit 30
    static constexpr int fraction = 16;  // random bits come as integers in [0, 2^16)
    static constexpr u32 magnitude = 0x7fffffffu, infinity = 0x7f800000u, nan = 0x7fc00000u, one = 0x00800000u;
};
template <>
struct Carrier<u64> {
    static constexpr int mantissa = 52, bias = 1023, width = 64;
    static constexpr int headroom = 10;
    static constexpr int fraction = 32;
    static constexpr u64 magnitude = 0x7fffffffffffffffull, infinity = 0x7ff0000000000000ull,
                         nan = 0x7ff8000000000000ull, one = 0x0010000000000000ull;
};

// The constants decoding needs, made once per call from a Format.
template <class E>
struct Decoder {
    int shift;     // from the format's mantissa to the carrier's
    E min_normal;  // code of 2^emin
    E offset;      // carrier bits of 2^emin, less code min_normal shifted
    E emin_bits;   // carrier bits of 2^emin
    E sign_bit, max_code, inf_code, nan_code;
    int sign_shift;  // from the format's sign bit to the carrier's
    int subnormals, zero;
};

template <class E>
LP_INLINE Decoder<E> make_decoder(const Format &f) {
    typedef Carrier<E> C;
    Decoder<E> d = {};
    if (f.mantissa_bits > C::mantissa) return d;  // wider than the lane, as float64 input is: nothing decodes it there
    d.shift = C::mantissa - f.mantissa_bits;
    d.min_normal = f.zero ? E(1) << f.mantissa_bits : 0;
    // The field may be 0 or below (float32's subnormals seen from e8m0): the arithmetic is modulo 2^width.
    d.emin_bits = E(f.emin + C::bias) << C::mantissa;
    d.offset = d.emin_bits - (d.min_normal << d.shift);
    d.sign_bit = E(f.sign_bit);
    d.max_code = E(f.max_code);
    d.inf_code = f.inf_code ? E(f.inf_code) : ~E(0);
    d.nan_code = E(f.nan_code);
    d.sign_shift = f.sign_bit ? C::width - 1 - f.exponent_bits - f.mantissa_bits : 0;
    d.subnormals = f.subnormals;
    d.zero = f.zero;
    return d;
}

// Magnitude code -> carrier bits of the finite value. Needs emin >= the carrier's own.
template <class L>
LP_INLINE L decode_finite(L code, const Decoder<typename Lanes<L>::element> &d) {
    typedef typename Lanes<L>::element E;
    typedef typename Lanes<L>::real R;
    L bits = (code << d.shift) + d.offset;
    if (!d.zero) return bits;
    // A subnormal m * 2^(emin - M) is 2^emin + m * 2^(emin - M), less 2^emin: both steps exact.
    R tiny = bit_cast<R>(bits + (E(1) << Carrier<E>::mantissa)) - bit_cast<R>(splat<L>(d.emin_bits));
    L small = d.subnormals ? bit_cast<L>(tiny) : L{};
    return code < d.min_normal ? small : bits;
}

// Whole code -> carrier bits, special values included; every NaN is the carrier's one, of positive sign.
template <class L>
LP_INLINE L decode(L code, const Decoder<typename Lanes<L>::element> &d) {
    typedef typename Lanes<L>::element E;
    typedef Carrier<E> C;
    L sign = code & d.sign_bit;
    L magnitude = code - sign;
    L bits = decode_finite(magnitude, d);
    L whole = (magnitude == d.inf_code ? splat<L>(C::infinity) : bits) | sign << d.sign_shift;
    whole = (magnitude > d.max_code) & (magnitude != d.inf_code) ? splat<L>(C::nan) : whole;
    return code == d.nan_code ? splat<L>(C::nan) : whole;
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
