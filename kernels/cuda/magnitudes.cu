// Counts of an array's special values and exponents, and the squares of its finite values, on the GPU
// (lowprec/backends/reference/counting.py). Arrays are C-contiguous; values are those stored times a factor, in
// float32.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/magnitudes.py):
//     LP_SQUARES 0: counts and the largest magnitude; 1: sums of squares
//     LP_FROM    Codes<u16> or Numbers<float>
#include "storage.cuh"

#ifndef LP_SQUARES
#define LP_SQUARES 0
#define LP_FROM Numbers<float>
#endif

namespace lowprec {

// Squares are added up in sixteen sums of every `piece` elements. Of `count` elements, `apart` and going round at the
// end, the exponents are counted.
struct MagnitudesJob {
    Format source;
    i64 size, piece, pieces, count, apart;
    float factor;
};

struct Counts {
    unsigned long long zeros, infinite, nan, exponents[256];
    unsigned int largest;  // bits of the largest finite magnitude
};

constexpr int sums = 16;

inline namespace LP_ISA {

struct Values {
    Decoder<u32> source;
    const typename LP_FROM::stored *data;
    float factor;

    LP_INLINE Values(const MagnitudesJob &job, const void *from)
        : source(make_decoder<u32>(job.source)),
          data(static_cast<const typename LP_FROM::stored *>(from)),
          factor(job.factor) {}
    LP_INLINE u32 operator()(i64 i) const {
        return bit_cast<u32>(bit_cast<float>(LP_FROM::load(data[i], source)) * factor);
    }
};

LP_INLINE bool is_finite(u32 bits) { return (bits & Carrier<u32>::magnitude) < Carrier<u32>::infinity; }

// Sum i of piece p: of the squares of elements i, i + 16, .. of the piece, in this order.
LP_INLINE void add_squares(const MagnitudesJob &job, const Values &values, i64 thread, i64 step, double *squares) {
    for (i64 at = thread; at < job.pieces * sums; at += step) {
        const i64 piece = at / sums, begin = piece * job.piece;
        const i64 end = job.piece < job.size - begin ? begin + job.piece : job.size;
        double total = 0;
        for (i64 i = begin + at % sums; i < end; i += sums) {
            const u32 bits = values(i);
            const double x = is_finite(bits) ? double(bit_cast<float>(bits)) : 0.0;
            total += x * x;
        }
        squares[at] = total;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec

// `to`: sixteen sums of each piece, or the counts, which begin as zeros.
extern "C" __global__ void __launch_bounds__(256)
    lowprec_magnitudes(lowprec::MagnitudesJob job, const void *from, void *to) {
    using namespace lowprec;
    const Values values(job, from);
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
#if LP_SQUARES
    add_squares(job, values, thread, step, static_cast<double *>(to));
#else
    // A block counts exponents by itself first: few places would make all threads wait for each other.
    __shared__ unsigned int exponents[256];
    for (unsigned int e = threadIdx.x; e < 256; e += blockDim.x) exponents[e] = 0;
    __syncthreads();
    // A step at a time, since number times distance may leave 64 bits.
    i64 at = thread * job.apart % job.size;
    const i64 along = step * job.apart % job.size;
    for (i64 k = thread; k < job.count; k += step) {
        atomicAdd(&exponents[values(at) >> 23 & 0xff], 1u);
        at += along;
        if (at >= job.size) at -= job.size;
    }
    unsigned long long zeros = 0, infinite = 0, nan = 0;
    unsigned int largest = 0;
    for (i64 i = thread; i < job.size; i += step) {
        const u32 magnitude = values(i) & Carrier<u32>::magnitude;
        zeros += magnitude == 0;
        infinite += magnitude == Carrier<u32>::infinity;
        nan += magnitude > Carrier<u32>::infinity;
        if (magnitude < Carrier<u32>::infinity && magnitude > largest) largest = magnitude;
    }
    __syncthreads();
    Counts *counts = static_cast<Counts *>(to);
    for (unsigned int e = threadIdx.x; e < 256; e += blockDim.x)
        if (exponents[e]) atomicAdd(&counts->exponents[e], (unsigned long long)(exponents[e]));
    if (zeros) atomicAdd(&counts->zeros, zeros);
    if (infinite) atomicAdd(&counts->infinite, infinite);
    if (nan) atomicAdd(&counts->nan, nan);
    atomicMax(&counts->largest, largest);
#endif
}
