// Block formats and scaled arrays on the GPU: one thread per block, from its largest magnitude to its elements.
//
// All is computed in doubles: a value over its scale becomes a double rounded to odd (exact.h), which the one rounding
// that follows takes as the exact quotient. Arrays are C-contiguous.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/blocks.py):
//     LP_SPREAD  0: x into codes of elements and scales, 1: such codes into values
//     LP_SCALE   powers, reals, or given: one scale for all, and no codes of scales
//     LP_FROM    Codes<u8 u16> or Numbers<float double>: of x, or of the elements
//     LP_TO      Codes<u8 u16> of the elements, or Numbers<float double>: values
//     LP_SCALES  Codes<u8 u16>: of the scales
//     LP_MODE    rounding of the elements
//     LP_SCALE_MODE  that of scales: up or nearest_even
#include "lowprec/exact.h"
#include "units.cuh"

#ifndef LP_SPREAD
#define LP_SPREAD 0
#define LP_SCALE powers
#define LP_FROM Numbers<float>
#define LP_TO Codes<u8>
#define LP_SCALES Codes<u8>
#define LP_MODE stochastic
#define LP_SCALE_MODE nearest_even
#endif

namespace lowprec {

enum ScaleKind { powers, reals, given };

// Blocks of `block` values along the middle axis of (lines, length, columns), of which `blocks` make a line.
struct BlockJob {
    Rounding rounding, scale_rounding;
    Format source, element, scale;  // source: of x
    i64 lines, length, columns, block, blocks;
    u64 key, offset;
    double tensor, limit, least;  // factor of all scales; what the largest magnitude is divided by; the smallest scale
    u64 carry_from;               // fractions of a largest magnitude, in units of 2^-52, that raise the shared exponent
    double integer;               // of a code in two's complement; 0: sign and magnitude
    int emax, scale_least, scale_most, void_blocks;  // void_blocks: the scale says NaN, for elements cannot
};

inline namespace LP_ISA {

// What lies so far out is beyond every format and scale that comes here, and leaves no quotient a double cannot hold.
constexpr double farthest = 0x1p600;

LP_INLINE double within(double x) {
    const double size = size_of_double(x);
    if (size == 0 || !(size < bit_cast<double>(Carrier<u64>::infinity))) return x;
    const double kept = size < 1 / farthest ? 1 / farthest : size > farthest ? farthest : size;
    return sign_of(x) ? -kept : kept;
}

// x / y, finite, as a double that rounds on as the quotient does.
LP_INLINE double quotient(double x, double y) {
    int left;
    return round_exact<odd>(quotient_of(x, y), left);
}

LP_INLINE double value_of(u64 bits) { return bit_cast<double>(bits); }

// The code of the scale of a block whose largest finite magnitude is given.
LP_INLINE u64 scale_code(const BlockJob &job, double amax, const Rounder<u64> &rounder) {
    double wanted = job.least;
    if (LP_SCALE == powers) {
        const u64 bits = bit_cast<u64>(amax), fraction = bits & (Carrier<u64>::one - 1);
        int exponent = int(bits >> Carrier<u64>::mantissa) - Carrier<u64>::bias - job.emax;
        exponent += fraction >= job.carry_from;
        if (amax == 0 || exponent < job.scale_least) exponent = job.scale_least;
        if (exponent > job.scale_most) exponent = job.scale_most;
        wanted = value_of(u64(exponent + Carrier<u64>::bias) << Carrier<u64>::mantissa);
    } else if (amax != 0) {
        const double real = quotient(amax, job.limit);
        wanted = real < job.least ? job.least : real;
    }
    return round_bits<LP_SCALE_MODE, false>(bit_cast<u64>(wanted), u64(0), rounder);
}

// Element number `at` of all, in a block's loop: its bits as a double's.
template <class From>
LP_INLINE double read(const void *from, i64 at, const Decoder<u64> &source) {
    return value_of(From::load(static_cast<const typename From::stored *>(from)[at], source));
}

LP_INLINE u64 twos_complement(u64 code) { return code & 0x80 ? (0 - (code & 0x7f)) & 0xff : code; }

#if LP_SPREAD
LP_INLINE void whole_block(const BlockJob &job, i64 begin, i64 count, i64 number, const void *from, void *scales,
                           void *to, u32 *bad) {
    const Decoder<u64> elements = make_decoder<u64>(job.element);
    typedef typename LP_FROM::stored Code;
    double factor = job.tensor;
    if (LP_SCALE != given) factor *= read<LP_SCALES>(scales, number, make_decoder<u64>(job.scale));
    for (i64 n = 0, at = begin; n < count; ++n, at += job.columns) {
        const u64 code = static_cast<const Code *>(from)[at];
        if (bad && code >> (job.element.exponent_bits + job.element.mantissa_bits + (job.element.sign_bit != 0)))
            *bad = 1;
        const double whole = double(i64(code) - (code > 127 ? 256 : 0)) * job.integer;
        const double value = (job.integer != 0 ? whole : value_of(decode(code, elements))) * factor;
        const u64 bits = value == value ? bit_cast<u64>(value) : Carrier<u64>::nan;
        static_cast<typename LP_TO::stored *>(to)[at] = LP_TO::template store<true>(bits, Rounder<u64>());
    }
}
#else
LP_INLINE void whole_block(const BlockJob &job, i64 begin, i64 count, i64 number, const void *from, void *scales,
                           void *to, u32 *bad) {
    const Decoder<u64> source = make_decoder<u64>(job.source);
    const Rounder<u64> rounder = make_rounder<u64>(job.rounding, false);
    double divisor = job.tensor;
    u64 code = 0;
    if (LP_SCALE != given) {
        double amax = 0;
        for (i64 n = 0, at = begin; n < count; ++n, at += job.columns) {
            const double size = size_of_double(within(read<LP_FROM>(from, at, source)));
            amax = size < value_of(Carrier<u64>::infinity) && size > amax ? size : amax;
        }
        code = scale_code(job, amax, make_rounder<u64>(job.scale_rounding, false));
        divisor *= value_of(decode(code, make_decoder<u64>(job.scale)));
    }
    IndexDraws draws(job.key, job.rounding.random_bits);
    for (i64 n = 0, at = begin; n < count; ++n, at += job.columns) {
        double x = within(read<LP_FROM>(from, at, source));
        const bool is_finite = finite(x);
        if (is_finite && x != 0) x = quotient(x, divisor);
        if (!is_finite && job.void_blocks) {
            code = job.scale.nan_code;
            x = 0;
        }
        if (bad && x != x) *bad = 1;
        u64 random = 0;
        if (LP_MODE == stochastic) random = draws(job.offset + u64(at));
        const u64 element = round_bits<LP_MODE, false>(bit_cast<u64>(x), random, rounder);
        static_cast<typename LP_TO::stored *>(to)[at] =
            typename LP_TO::stored(job.integer != 0 ? twos_complement(element) : element);
    }
    if (LP_SCALE != given) static_cast<typename LP_SCALES::stored *>(scales)[number] = code;
}
#endif

}  // namespace LP_ISA
}  // namespace lowprec

// `bad` is raised by a NaN that no code and no scale can say, or by a code wider than the format.
extern "C" __global__ void __launch_bounds__(256)
    lowprec_blocks(lowprec::BlockJob job, const void *from, void *scales, void *to, unsigned int *bad) {
    using namespace lowprec;
    const i64 all = job.lines * job.blocks * job.columns, step = i64(gridDim.x) * blockDim.x;
    for (i64 number = i64(blockIdx.x) * blockDim.x + threadIdx.x; number < all; number += step) {
        const i64 column = number % job.columns, run = number / job.columns;
        const i64 line = run / job.blocks, first = run % job.blocks * job.block;
        const i64 count = job.length - first < job.block ? job.length - first : job.block;
        whole_block(job, (line * job.length + first) * job.columns + column, count, number, from, scales, to, bad);
    }
}
