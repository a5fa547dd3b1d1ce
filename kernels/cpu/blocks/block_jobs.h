// Jobs of block formats: values that share a scale.
#ifndef LOWPREC_BLOCK_JOBS_H
#define LOWPREC_BLOCK_JOBS_H

#include "rounding/rounding_jobs.h"

namespace lowprec {

// An array seen as lines of `length` rows of `inner` values: blocks lie along the rows, `per_line` of them, the last
// perhaps short. Block row k holds the blocks of all `inner` columns; its values and its scales lie together.
struct BlockShape {
    i64 lines, length, inner, block, per_line;
};

enum ScaleChoice {
    power_scales,  // a power of two for each block
    real_scales,   // amax / wanted_divisor, rounded to the scale's format
    given_scale    // one factor for all
};

// How a value is brought to its element's range; the result is a float, or a double where `wide_values`.
enum Scaling {
    by_factor,        // x * factor, a power of two
    by_divisor,       // x / divisor, rounded to nearest in the type of the result
    by_wide_divisor,  // a float by a double: the quotient of doubles, rounded to odd
    by_odd_divisor    // a double, rounded to odd from the exact quotient
};

struct BlockJob {
    BlockShape shape;
    ConvertJob elements;  // from the scaled values; `from` and `to` are set for every run of them
    ConvertJob finite;    // the same for runs without infinities and NaN: quicker rounding knows no rule for them
    Storage in;           // of x: real32, real64, or codes of `source`, which float holds
    Format source;
    const void *from;
    int choice, scaling;
    int wide_in;      // x counts as double
    int wide_values;  // scaled values are doubles
    int guard;        // results of scaling may leave the range of their type, or directed modes see how they do
    int voids;        // elements know no NaN: the scale of a block says it
    int integers;     // codes become two's complement
    // power_scales: exponent = floor(log2(amax)) - element_emax, plus one where amax's mantissa is at least `carry`.
    int element_emax, least, largest, code_base;
    u64 carry;
    // real_scales
    Rounding scale;
    double wanted_divisor, smallest, tensor;
    int odd_scales;  // the quotient is rounded to odd
    double factor;   // given_scale
    void *scales;
    int scale_bytes;
    u64 scale_nan;
};

struct SpreadJob {
    BlockShape shape;
    Format element, scale;
    Storage in, scales_in, out;  // out: real32 or real64
    const void *from, *scales;
    void *to;
    int integers;  // elements are i8, times `quantum`
    int given;     // one factor for all instead of scales
    double quantum, factor, tensor;
};

struct MagnitudeJob {
    Storage in;
    Format source;
    const void *from;
};

}  // namespace lowprec
#endif
