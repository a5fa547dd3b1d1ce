// Panels of 256 float32 values on AVX-512: rounded to codes of one byte, and stochastically to float16 and bfloat16.
#ifndef LOWPREC_TOP_PANELS_H
#define LOWPREC_TOP_PANELS_H

#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {

// The constants of such a rounding, made once per call.
struct TopRounder {
    // Rounds whole panels, the first with the random words from `block` on. True where surely none holds a NaN.
    // Null: there is no such way.
    bool (*run)(const u32 *from, void *to, i64 panels, u64 block, const RandomBlocks &random, const TopRounder &k);
    FastPanel fast;  // for panels with values that this way does not cover
    FastRounder fast_rounder;
    bool stochastic;       // else nearest-even
    u32 clamp, limit;      // carrier bits of the value that stands for all beyond, and of the largest one
    u32 smallest;          // carrier bits of 2^emin
    u32 unit_sum, to_top;  // what the power of two and the sum of nearest-even bytes are multiplied by
    u32 fractions;         // and of how many of the least random bit's units are 1
    u32 base;              // brings the exponent field to the code's
    int shift;             // brings the code above the discarded bits
    int sign_shift;        // and the sign to the code's
    u32 sign;              // mask of the sign in the lane
    u32 random_mask;       // of the random bits in both half-words
};

// `fast` serves the same rounding, to codes of so many bytes; null: there is none.
TopRounder make_top_rounder(const Rounding &r, const FastRounder &fast_rounder, FastPanel fast, int bytes);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
