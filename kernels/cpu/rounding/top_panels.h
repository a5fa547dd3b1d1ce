// Panels of 256 float32 values rounded to codes of one or two bytes, on AVX-512.
#ifndef LOWPREC_TOP_PANELS_H
#define LOWPREC_TOP_PANELS_H

#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {

// Rounds the first `count` values of a panel in whichever way; `random` may be null unless the mode is stochastic.
typedef void (*GeneralPanel)(const u32 *from, const u32 *random, void *to, int count, const Rounder<u32> &k);

// The constants of such a rounding, made once per call.
struct TopRounder {
    // Rounds whole panels, the first with the random words from `block` on. True where surely none holds a NaN.
    // Null: there is no such way.
    bool (*run)(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random, const TopRounder &k);
    // For panels with values that this way does not cover: `fast`, or `general` where there is none.
    FastPanel fast;
    GeneralPanel general;
    FastRounder fast_rounder;
    const Rounder<u32> *rounder;
    bool stochastic;
    bool takes_kept;        // random words that are there already: so do float16 and bfloat16
    u32 clamp, limit;       // carrier bits of the value that stands for all beyond, and of the largest one
    u32 smallest;           // carrier bits of 2^emin
    u32 unit_sum, to_top;   // what the power of two and the sum of nearest-even bytes are multiplied by
    u32 fractions;          // and of how many of the least random bit's units are 1
    u32 base;               // brings the exponent field to the code's, and adds what the mode adds to every value
    int left, right;        // shifts that bring the code above the discarded bits
    int sign_shift;         // and the sign to the code's
    u32 sign, random_mask;  // masks in the lane: of the sign, and of the random bits in both half-words
    u16 normal;             // exponent bits of a code; 0 where subnormals keep all bits that count
};

// `fast` (or null) and `general` serve the same rounding, to codes of so many bytes.
TopRounder make_top_rounder(const Rounding &r, const FastRounder &fast_rounder, FastPanel fast, GeneralPanel general,
                            const Rounder<u32> &rounder, int bytes);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
