// Distances between values and what they should be, and counts of values by kind, on the GPU (lowprec/statistics).
// Arrays are C-contiguous, values are double; codes are of a format, each that of the value at its place.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/measures.py):
//     LP_MEASURE a distance: relative_error, ulp_error, ulp_distance; a kind: underflow, binade, share
//     LP_COUNTS  how many kinds there are; 0: LP_MEASURE is a distance
//     LP_CODE    u8 u16 u32 u64
#include "storage.cuh"

#ifndef LP_MEASURE
#define LP_MEASURE relative_error
#define LP_COUNTS 0
#define LP_CODE u8
#endif

namespace lowprec {

// `largest` and `least` are the format's largest value and its smallest normal one.
struct MeasureJob {
    Format format;
    i64 size;
    double largest, least;
};

inline namespace LP_ISA {

LP_INLINE u64 without_sign(double x) { return bit_cast<u64>(x) & Carrier<u64>::magnitude; }
LP_INLINE double absolute(double x) { return bit_cast<double>(without_sign(x)); }
LP_INLINE bool is_nan(double x) { return x != x; }
LP_INLINE bool is_finite(double x) { return without_sign(x) < Carrier<u64>::infinity; }
LP_INLINE bool is_number(double x) { return is_finite(x) && x != 0; }

// floor(log2(|x|)) of a finite x other than zero.
LP_INLINE int exponent_of(double x) {
    const u64 bits = without_sign(x);
    const int field = int(bits >> Carrier<u64>::mantissa);
    return field ? field - Carrier<u64>::bias : 63 - leading_zeros(bits) - 1074;
}

// 2^exponent, up to 2^1023; 0 below the smallest double.
LP_INLINE double power_of_two(int exponent) {
    if (exponent < -1074) return 0;
    if (exponent < -1022) return bit_cast<double>(u64(1) << (exponent + 1074));
    return bit_cast<double>(u64(exponent + Carrier<u64>::bias) << Carrier<u64>::mantissa);
}

// |x - truth|, 0 for equal infinities and two NaN.
LP_INLINE double distance(double x, double truth) {
    return x == truth || (is_nan(x) && is_nan(truth)) ? 0 : absolute(x - truth);
}

// What the measures are given: two values, codes, and the decoder of these.
struct Pair {
    const MeasureJob &job;
    const Decoder<u64> &format;
    double x, y;
    u64 x_code, y_code;
};

LP_INLINE double relative_error(const Pair &pair) {
    const double found = distance(pair.x, pair.y);
    return found == 0 || !is_finite(found) ? found : found / absolute(pair.y);
}

LP_INLINE double ulp_error(const Pair &pair) {
    const double found = distance(pair.x, pair.y);
    if (!is_finite(pair.y)) return found;
    const int emin = pair.job.format.emin, exponent = pair.y == 0 ? emin : exponent_of(pair.y);
    return found / power_of_two((exponent < emin ? emin : exponent) - pair.job.format.mantissa_bits);
}

// Codes of magnitudes ascend with the values, in steps of one from neighbour to neighbour.
LP_INLINE i64 place_of(u64 code, u64 sign_bit) {
    const i64 magnitude = i64(sign_bit ? code & (sign_bit - 1) : code);
    return code & sign_bit ? -magnitude : magnitude;
}

LP_INLINE double ulp_distance(const Pair &pair) {
    if (is_nan(pair.x) || is_nan(pair.y)) return is_nan(pair.x) && is_nan(pair.y) ? 0 : __builtin_nan("");
    const i64 a = place_of(pair.x_code, pair.job.format.sign_bit), b = place_of(pair.y_code, pair.job.format.sign_bit);
    return double(a > b ? u64(a) - u64(b) : u64(b) - u64(a));  // up to 2^64 apart
}

// Whether a value is not what its code says.
LP_INLINE bool is_off(double x, u64 code, const Decoder<u64> &format) {
    return !is_nan(x) && bit_cast<double>(decode(code, format)) != x;
}

constexpr int nothing = -1;

// Of numbers other than zero: those that stayed, and those that became zero.
LP_INLINE int underflow(const Pair &pair) { return is_number(pair.x) ? pair.y == 0 : nothing; }

// Zeros, infinities and NaN, then the binades from that of float64's smallest subnormal number.
LP_INLINE int binade(const Pair &pair) {
    if (is_number(pair.x)) return 3 + 1074 + exponent_of(pair.x);
    return pair.x == 0 ? 0 : is_nan(pair.x) ? 2 : 1;
}

// The fields of `Shares`, by number. The codes are those of `_marking`, which tell overflow.
LP_INLINE int share(const Pair &pair) {
    enum { normal, subnormal, underflowed, overflow, zero, infinite, nan };
    if (is_nan(pair.x)) return nan;
    if (!is_finite(pair.x)) return infinite;
    if (pair.x == 0) return zero;
    const Format &format = pair.job.format;
    // Code 0 is a small value's too; the size tells them apart.
    const bool beyond = pair.x_code == 0 && absolute(pair.x) >= pair.job.largest;
    if (beyond || (!format.sign_bit && pair.x < 0 && pair.x_code == format.max_code)) return overflow;
    const double rounded = absolute(bit_cast<double>(decode(pair.x_code, pair.format)));
    return rounded == 0 ? underflowed : rounded < pair.job.least ? subnormal : normal;
}

}  // namespace LP_ISA
}  // namespace lowprec

// `y`, `x_codes` and `y_codes`: null where the measure has no use for them.
#if LP_COUNTS
// Adds to `counts`, one for each kind.
extern "C" __global__ void __launch_bounds__(256)
    lowprec_measure(lowprec::MeasureJob job, const double *x, const double *y, const lowprec::LP_CODE *x_codes,
                    const lowprec::LP_CODE *, unsigned long long *counts) {
    using namespace lowprec;
    const Decoder<u64> format = make_decoder<u64>(job.format);
    // A block counts by itself first: few places would make all threads wait for each other.
    __shared__ unsigned int mine[LP_COUNTS];
    for (unsigned int kind = threadIdx.x; kind < LP_COUNTS; kind += blockDim.x) mine[kind] = 0;
    __syncthreads();
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
    for (i64 i = thread; i < job.size; i += step) {
        const Pair pair = {job, format, x[i], y ? y[i] : 0, x_codes ? x_codes[i] : u64(0), 0};
        const int kind = LP_MEASURE(pair);
        if (kind != nothing) atomicAdd(&mine[kind], 1u);
    }
    __syncthreads();
    for (unsigned int kind = threadIdx.x; kind < LP_COUNTS; kind += blockDim.x)
        if (mine[kind]) atomicAdd(&counts[kind], (unsigned long long)(mine[kind]));
}
#else
// `off`, where codes are given: of the first x and the first y that is not what its code says all ones less the index,
// which begin as zeros; then distances, one for each pair.
extern "C" __global__ void __launch_bounds__(256)
    lowprec_measure(lowprec::MeasureJob job, const double *x, const double *y, const lowprec::LP_CODE *x_codes,
                    const lowprec::LP_CODE *y_codes, double *to, unsigned long long *off) {
    using namespace lowprec;
    const Decoder<u64> format = make_decoder<u64>(job.format);
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
    for (i64 i = thread; i < job.size; i += step) {
        const Pair pair = {job, format, x[i], y[i], x_codes ? x_codes[i] : u64(0), y_codes ? y_codes[i] : u64(0)};
        if (x_codes && is_off(pair.x, pair.x_code, format)) atomicMax(&off[0], ~0ull - i);
        if (y_codes && is_off(pair.y, pair.y_code, format)) atomicMax(&off[1], ~0ull - i);
        to[i] = LP_MEASURE(pair);
    }
}
#endif
