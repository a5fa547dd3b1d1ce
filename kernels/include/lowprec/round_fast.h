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

#ifdef LP_VECTOR_BYTES

// All numbers here are below 2^31, and signed comparisons are one instruction everywhere.
LP_INLINE u32v where_above(u32v a, u32 limit, u32v yes, u32v no) { return (i32v)a > i32(limit) ? yes : no; }

// Magnitude -> magnitude code, or the bits of the rounded magnitude. `random` stands at the top of the discarded bits.
template <int mode, int way, bool as_value>
LP_INLINE u32v fast_magnitude(u32v magnitude, u32v random, const FastRounder &k) {
    if constexpr (way == aligned) {
        const u32v parity = (magnitude >> k.drop) & 1;
        const u32v sum = magnitude + (mode == stochastic ? random : parity + ((1u << (k.drop - 1)) - 1));
        return as_value ? (sum >> k.drop) << k.drop : sum >> k.drop;
    }
    const u32v c = smaller(magnitude, splat<u32v>(k.clamp));
    const u32v exponent = larger(c & Carrier<u32>::infinity, splat<u32v>(k.floor));
    const u32v offset = (exponent - k.floor) >> k.code_shift;
    if constexpr (mode == nearest_even) {
        const u32v magic = exponent + k.magic;
        const f32v sum = bit_cast<f32v>(c) + bit_cast<f32v>(magic);
        return as_value ? bit_cast<u32v>(sum - bit_cast<f32v>(magic)) : bit_cast<u32v>(sum) - magic + offset;
    }
    const f32v fixed = bit_cast<f32v>(c) * bit_cast<f32v>(k.scale - exponent);
    const u32v integer = ((u32v) __builtin_convertvector(fixed, i32v) + random) >> k.drop;
    if constexpr (!as_value) return integer + offset;
    const f32v quantum = bit_cast<f32v>(exponent - k.ulp);
    return bit_cast<u32v>(__builtin_convertvector((i32v)integer, f32v) * quantum);
}

// Carrier bits -> whole code, or (as_value) the carrier bits of the rounded value.
template <int mode, int way, int end, bool as_value>
LP_INLINE u32v fast_round(u32v bits, u32v random, const FastRounder &k) {
    const u32v magnitude = bits & Carrier<u32>::magnitude;
    u32v sign = (bits ^ magnitude) >> k.sign_shift;
    u32v payload = fast_magnitude<mode, way, as_value>(magnitude, random, k);
    if (!k.negative_zero) sign = payload == 0 ? u32v{} : sign;
    if constexpr (end == to_nan) return where_above(payload, k.limit, splat<u32v>(k.nan), payload | sign);
    payload = where_above(payload, k.limit, splat<u32v>(k.beyond), payload);
    return where_above(magnitude, Carrier<u32>::infinity, splat<u32v>(k.nan), payload | sign);
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
