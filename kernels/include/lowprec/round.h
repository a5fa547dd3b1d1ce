// The rounding function: value bits, random bits, format numbers -> code. It exists once, here.
//
// A finite |x| is brought to w, its significand with the hidden bit just below the lane's top bit. Seen from
// the format's quantum, w is a fixed-point number whose integer part is at bit `drop`: the integer part is
// the code within its binade, and subnormals only shift w right by their distance below the smallest normal.
// Rounding is then one addition below bit `drop`, and carries into the next binade fall out of the addition.
// Overflow, infinities and NaN are selects at the end.
#ifndef LOWPREC_ROUND_H
#define LOWPREC_ROUND_H

#include "format.h"

namespace lowprec {

// Every mode, in the order that Python has them too. What is chosen by the mode at run time has a case for each: X is
// called with their names.
#define LP_MODES(X) X(nearest_even) X(nearest_away) X(toward_zero) X(up) X(down) X(odd) X(stochastic)
#define LP_NAME_OF_MODE(m) m,
enum Mode { LP_MODES(LP_NAME_OF_MODE) mode_count };
#undef LP_NAME_OF_MODE

// What a rounding needs beside the format. The results of step 2 and 4 of the rounding are whole codes.
struct Rounding {
    Format format;
    int mode, random_bits, flush;
    u64 over_pos, over_neg;  // finite x beyond the largest value
    u64 inf_pos, inf_neg;    // infinite x
    u64 negative, none;      // x < 0 into an unsigned format, x = 0 into one without zero
};

inline namespace LP_ISA {

// The constants of one rounding in lanes of element E, made once per call.
template <class E>
struct Rounder {
    int drop;           // discarded bits of w for a normal value
    int code_shift;     // from the carrier's exponent field to the code's
    E base_min, clamp;  // exponent field of 2^emin, less one; carrier bits of 2^(emax+1)
    E code_base;        // formats without zero start one binade lower
    E random_mask;      // keeps the top n random bits
    int random_shift;   // brings them to the top of the discarded bits (negative: right)
    int sign_position;
    int mantissa_bits, negative_zero, subnormals, zero, is_signed, flush;
    E max_code, over_pos, over_neg, inf_pos, inf_neg, nan, negative, none;
    Decoder<E> decoder;
};

template <class E>
LP_INLINE void set_results(Rounder<E> &k, const Rounding &r, bool as_value) {
    const Decoder<E> &d = k.decoder;
    k.over_pos = as_value ? decode(E(r.over_pos), d) : E(r.over_pos);
    k.over_neg = as_value ? decode(E(r.over_neg), d) : E(r.over_neg);
    k.inf_pos = as_value ? decode(E(r.inf_pos), d) : E(r.inf_pos);
    k.inf_neg = as_value ? decode(E(r.inf_neg), d) : E(r.inf_neg);
    k.negative = as_value ? decode(E(r.negative), d) : E(r.negative);
    k.none = as_value ? decode(E(r.none), d) : E(r.none);
    k.nan = as_value ? Carrier<E>::nan : E(r.format.nan_code);
}

template <class E>
LP_INLINE Rounder<E> make_rounder(const Rounding &r, bool as_value) {
    typedef Carrier<E> C;
    const Format &f = r.format;
    Rounder<E> k;
    k.decoder = make_decoder<E>(f);
    k.drop = C::width - 2 - f.mantissa_bits;
    k.code_shift = C::mantissa - f.mantissa_bits;
    k.base_min = E(f.emin + C::bias - 1) << C::mantissa;
    int top_field = int(f.max_code >> f.mantissa_bits) + (f.zero ? 0 : 1);
    int above = f.emin + top_field + C::bias;
    k.clamp = above > 2 * C::bias ? C::infinity : E(above) << C::mantissa;
    k.code_base = f.zero ? 0 : E(1) << f.mantissa_bits;
    int unused = r.random_bits < C::fraction ? C::fraction - r.random_bits : 0;
    k.random_mask = (E(1) << C::fraction) - (E(1) << unused);
    k.random_shift = k.drop - C::fraction;
    k.sign_position = as_value ? C::width - 1 : f.exponent_bits + f.mantissa_bits;
    k.mantissa_bits = f.mantissa_bits;
    k.negative_zero = f.negative_zero;
    k.subnormals = f.subnormals || !f.zero;
    k.zero = f.zero;
    k.is_signed = f.sign_bit != 0;
    k.flush = r.flush;
    k.max_code = E(f.max_code);
    set_results(k, r, as_value);
    return k;
}

// One addition below bit `drop`: what is added decides the mode. `w` is the aligned significand, `lost` is
// nonzero where bits of it were already shifted out, `code` gives the parity of the truncated result.
template <int mode, class L>
LP_INLINE L round_up(L w, L lost, L code, L negative, L random, const Rounder<typename Lanes<L>::element> &k) {
    typedef typename Lanes<L>::element E;
    const E unit = E(1) << k.drop;
    const L sticky = lost != 0 ? splat<L>(1) : L{};
    if constexpr (mode == stochastic) {
        const L r = random & k.random_mask;
        return w + (k.random_shift >= 0 ? r << k.random_shift : r >> -k.random_shift);
    } else if constexpr (mode == nearest_even) {
        return (w | sticky) + (unit / 2 - 1) + (code & 1);
    } else if constexpr (mode == nearest_away) {
        return w + unit / 2;
    } else if constexpr (mode == up) {
        return (w | sticky) + (negative != 0 ? L{} : splat<L>(unit - 1));
    } else if constexpr (mode == down) {
        return (w | sticky) + (negative != 0 ? splat<L>(unit - 1) : L{});
    } else if constexpr (mode == odd) {
        return (w | sticky) + ((code & 1) != 0 ? L{} : splat<L>(unit - 1));
    } else {
        static_assert(mode == toward_zero, "a mode without a rule");
        return w;
    }
}

// Aligned significand w (hidden bit second from the top) and base (exponent field less one, in place) ->
// magnitude code, as if the exponent range had no upper end.
template <int mode, class L>
LP_INLINE L round_aligned(L w, L base, L negative, L random, const Rounder<typename Lanes<L>::element> &k) {
    typedef typename Lanes<L>::element E;
    typedef Carrier<E> C;
    L start = larger(base, splat<L>(k.base_min));
    L below = smaller((start - base) >> C::mantissa, splat<L>(C::width - 1));
    L v = w >> below;
    L lost = (v << below) ^ w;
    L grain = L{};
    if (!k.subnormals) {  // below 2^emin the grid is 0 and 2^emin alone
        grain = below != 0 ? splat<L>(k.mantissa_bits) : L{};
        L coarse = v >> grain;
        lost |= (coarse << grain) ^ v;
        v = coarse;
    }
    L offset = ((start - k.base_min) >> k.code_shift) - k.code_base;
    L code = (v >> k.drop) + offset;
    L integer = round_up<mode>(v, lost, code, negative, random, k) >> k.drop;
    if (!k.subnormals) integer = integer << grain;
    return integer + offset;
}

// Selects after the rounding. `magnitude` are the carrier bits without the sign, `code` the rounded magnitude
// code, `payload` what is returned for a finite result: the code itself or the bits of its value.
template <class L>
LP_INLINE L finish(L code, L payload, L magnitude, L negative, const Rounder<typename Lanes<L>::element> &k) {
    typedef Carrier<typename Lanes<L>::element> C;
    L result = payload | (negative << k.sign_position);
    if (k.zero && !k.negative_zero) result = code == 0 ? L{} : result;
    L over = negative != 0 ? splat<L>(k.over_neg) : splat<L>(k.over_pos);
    L inf = negative != 0 ? splat<L>(k.inf_neg) : splat<L>(k.inf_pos);
    result = code > k.max_code ? over : result;
    if (!k.is_signed) {
        L refused = k.zero ? code : magnitude;
        refused = refused != 0 ? negative : L{};
        result = refused != 0 ? splat<L>(k.negative) : result;
    }
    result = magnitude == C::infinity ? inf : result;
    if (!k.zero) result = magnitude == 0 ? splat<L>(k.none) : result;
    return magnitude > C::infinity ? splat<L>(k.nan) : result;
}

// Carrier bits of any value -> whole code, or (as_value) the carrier bits of the rounded value.
template <int mode, bool as_value, class L>
LP_INLINE L round_bits(L bits, L random, const Rounder<typename Lanes<L>::element> &k) {
    typedef typename Lanes<L>::element E;
    typedef Carrier<E> C;
    L magnitude = bits & C::magnitude;
    L negative = bits >> (C::width - 1);
    L c = smaller(magnitude, splat<L>(k.clamp));
    if (!k.zero) c = larger(c, splat<L>(k.base_min + C::one));
    L base = larger(c & C::infinity, splat<L>(C::one)) - C::one;
    L code = round_aligned<mode>((c - base) << C::headroom, base, negative, random, k);
    if (k.flush) code = code < k.decoder.min_normal ? L{} : code;
    L payload = as_value ? decode_finite(code, k.decoder) : code;
    return finish(code, payload, magnitude, negative, k);
}

// An integer of up to 64 significant bits -> whole code: it enters below the carrier, which holds only 53.
template <int mode>
LP_INLINE u64 round_integer(u64 magnitude, u64 negative, u64 random, const Rounder<u64> &k) {
    typedef Carrier<u64> C;
    if (magnitude == 0) return k.zero ? 0 : k.none;
    int top = 63 - leading_zeros(magnitude);
    u64 w = top == 63 ? (magnitude >> 1) | (magnitude & 1) : magnitude << (62 - top);
    u64 base = u64(top + C::bias - 1) << C::mantissa;
    u64 stand_in = base + C::one;  // for the selects: finite and not zero
    if (base + C::one > k.clamp) {
        base = k.clamp - C::one;
        w = u64(1) << 62;
    }
    if (!k.zero && base < k.base_min) {
        base = k.base_min;
        w = u64(1) << 62;
    }
    u64 code = round_aligned<mode>(w, base, negative, random, k);
    if (k.flush) code = code < k.decoder.min_normal ? 0 : code;
    return finish(code, code, stand_in, negative, k);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
