// Short cuts of round.h for the common cases: float32 lanes, nearest-even or stochastic, formats like IEEE's.
//
// The bits are those of round.h (the tests run both). Two ways to the rounded significand:
//   scaled   formats of a narrower range than float32's. Nearest: adding 2^(e + 23 - M), the number whose last place
//            is the format's quantum at |x|, lets the hardware round to it; subnormals only fix e at emin. Stochastic:
//            |x| times a power of two has the integer part at bit `drop`, and one integer addition rounds.
//   aligned  formats with float32's exponents (bfloat16, tfloat32): codes are the top bits of float32's own.
// and two ways to end: `symmetric`, where everything beyond the largest value becomes one magnitude (infinity or the
// largest) with x's sign, and `to_nan`, where it becomes NaN.
#ifndef LOWPREC_ROUND_FAST_H
#define LOWPREC_ROUND_FAST_H

#include "round.h"

namespace lowprec {
inline namespace LP_ISA {

enum Way { scaled, aligned };
enum End { symmetric, to_nan };

// The constants of a short cut, made once per call.
struct FastRounder {
    int way, end;  // -1: the format is too wide, or too odd; the results beyond the largest are
    bool serves;   // whether fast_round below does this rounding
    int drop, code_shift, sign_shift;
    u32 clamp, floor;        // carrier bits of 2^(emax+1) and of 2^emin
    u32 scale, magic, ulp;   // exponents, in place: see the header's comment
    u32 limit, beyond, nan;  // payload of the largest value, of what lies beyond it, and of NaN
    u32 random_mask;         // of the high half-word
    int random_shift;        // brings the high half-word to the top of the discarded bits
    int negative_zero;
};

// Which end a rounding's results allow, -1 if neither.
LP_INLINE int end_of(const Rounding &r) {
    const Format &f = r.format;
    const bool one_nan = r.over_pos == f.nan_code && r.over_neg == f.nan_code;
    if (one_nan && r.inf_pos == f.nan_code && r.inf_neg == f.nan_code) return to_nan;
    const bool mirrored = r.over_neg == (r.over_pos | f.sign_bit) && r.over_pos != f.nan_code;
    return mirrored && r.inf_pos == r.over_pos && r.inf_neg == r.over_neg ? symmetric : -1;
}

LP_INLINE FastRounder make_fast_rounder(const Rounding &r, bool as_value) {
    typedef Carrier<u32> C;
    const Format &f = r.format;
    const Rounder<u32> k = make_rounder<u32>(r, as_value);
    FastRounder q;
    q.way = f.emin == -126 ? int(aligned) : int(scaled);
    q.end = end_of(r);
    const bool plain = f.zero && f.subnormals && f.sign_bit && !r.flush && r.random_bits <= 16;
    const bool common = r.mode == nearest_even || r.mode == stochastic;
    // In scaled form every power of two used must be a normal float32.
    const bool fits = f.mantissa_bits >= 1 && f.mantissa_bits <= 13 &&
                      (q.way == aligned ? f.exponent_bits == 8 : f.emin >= -97 && (k.clamp >> 23) + 23 <= 254);
    if (!plain || !fits) q.way = -1;
    q.serves = q.way >= 0 && q.end >= 0 && common;
    q.code_shift = k.code_shift;
    q.drop = q.way == aligned ? k.code_shift : k.drop;
    q.sign_shift = 31 - k.sign_position;
    q.clamp = k.clamp;
    q.floor = u32(f.emin + C::bias) << 23;
    q.scale = u32(30 + 2 * C::bias) << 23;
    q.magic = u32(k.code_shift) << 23;
    q.ulp = u32(f.mantissa_bits) << 23;
    q.limit = as_value ? decode(u32(f.max_code), k.decoder) : u32(f.max_code);
    q.beyond = q.end == symmetric ? k.over_pos : k.nan;
    q.nan = k.nan;
    q.random_mask = k.random_mask << 16;
    q.random_shift = 32 - q.drop;
    q.negative_zero = k.negative_zero;
    return q;
}

LP_INLINE i32 as_signed(u32 x) { return i32(x); }
LP_INLINE u32 whole_part(float x) { return u32(i32(x)); }
LP_INLINE float real_of(u32 x) { return float(i32(x)); }
#ifdef LP_VECTOR_BYTES
LP_INLINE i32v as_signed(u32v x) { return (i32v)x; }
LP_INLINE u32v whole_part(f32v x) { return (u32v) __builtin_convertvector(x, i32v); }
LP_INLINE f32v real_of(u32v x) { return __builtin_convertvector((i32v)x, f32v); }
#endif

// All numbers here are below 2^31, and signed comparisons are one instruction everywhere.
template <class L>
LP_INLINE L where_above(L a, u32 limit, L yes, L no) {
    return as_signed(a) > i32(limit) ? yes : no;
}

// Magnitude -> magnitude code, or the bits of the rounded magnitude. `random` stands at the top of the discarded bits.
template <int mode, int way, bool as_value, class L>
LP_INLINE L fast_magnitude(L magnitude, L random, const FastRounder &k) {
    typedef typename Lanes<L>::real R;
    if constexpr (way == aligned) {
        const L parity = (magnitude >> k.drop) & 1;
        const L sum = magnitude + (mode == stochastic ? random : parity + ((1u << (k.drop - 1)) - 1));
        return as_value ? (sum >> k.drop) << k.drop : sum >> k.drop;
    }
    const L c = smaller(magnitude, splat<L>(k.clamp));
    const L exponent = larger(c & Carrier<u32>::infinity, splat<L>(k.floor));
    const L offset = (exponent - k.floor) >> k.code_shift;
    if constexpr (mode == nearest_even) {
        const L magic = exponent + k.magic;
        const R sum = bit_cast<R>(c) + bit_cast<R>(magic);
        return as_value ? bit_cast<L>(sum - bit_cast<R>(magic)) : bit_cast<L>(sum) - magic + offset;
    }
    const R fixed = bit_cast<R>(c) * bit_cast<R>(k.scale - exponent);
    const L integer = (whole_part(fixed) + random) >> k.drop;
    if constexpr (!as_value) return integer + offset;
    const R quantum = bit_cast<R>(exponent - k.ulp);
    return bit_cast<L>(real_of(integer) * quantum);
}

// Carrier bits -> whole code, or (as_value) the carrier bits of the rounded value.
template <int mode, int way, int end, bool as_value, class L>
LP_INLINE L fast_round(L bits, L random, const FastRounder &k) {
    const L magnitude = bits & Carrier<u32>::magnitude;
    L sign = (bits ^ magnitude) >> k.sign_shift;
    L payload = fast_magnitude<mode, way, as_value>(magnitude, random, k);
    if (!k.negative_zero) sign = payload == 0 ? L{} : sign;
    if constexpr (end == to_nan) return where_above(payload, k.limit, splat<L>(k.nan), payload | sign);
    payload = where_above(payload, k.limit, splat<L>(k.beyond), payload);
    return where_above(magnitude, Carrier<u32>::infinity, splat<L>(k.nan), payload | sign);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
