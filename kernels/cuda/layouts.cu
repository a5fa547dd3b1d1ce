// Packing of narrow codes into bytes, and Hadamard rotations, on the GPU.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/layouts.py):
//     LP_KERNEL  pack, unpack or rotate
//     LP_REAL    float or double: of a rotation
#include "storage.cuh"

#ifndef LP_KERNEL
#define LP_KERNEL rotate
#define LP_REAL float
#endif

namespace lowprec {

// Rows of `size` codes of so many bits, each in whole bytes: the codes are a stream, its lowest bit first.
struct PackJob {
    i64 rows, size, bytes;
    int bits;
};

// One step of the rotation of blocks (.., length, columns): elements half apart become their sum and difference.
struct RotateJob {
    i64 pairs, length, columns, half;
    double factor;      // of the results; 1 but in the last step
    int before, after;  // whether signs are multiplied with before and after
};

inline namespace LP_ISA {

// `bad` is raised by a code of more bits.
LP_INLINE void pack(const PackJob &job, const void *from, void *to, const void *, u32 *bad) {
    const u8 *codes = static_cast<const u8 *>(from);
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < job.rows * job.bytes; at += step) {
        const i64 row = at / job.bytes, bit = 8 * (at - row * job.bytes);
        u32 byte = 0;
        // From the code that holds the byte's first bit to the one that holds its last.
        for (i64 n = bit / job.bits; n < job.size && n * job.bits < bit + 8; ++n) {
            const u32 code = codes[row * job.size + n];
            const int shift = int(n * job.bits - bit);
            byte |= shift < 0 ? code >> -shift : code << shift;
            if (code >> job.bits) *bad = 1;
        }
        static_cast<u8 *>(to)[at] = u8(byte);
    }
}

LP_INLINE void unpack(const PackJob &job, const void *from, void *to, const void *, u32 *) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < job.rows * job.size; at += step) {
        const i64 row = at / job.size, bit = (at - row * job.size) * job.bits;
        const u8 *bytes = static_cast<const u8 *>(from) + row * job.bytes + bit / 8;
        const int shift = int(bit % 8);
        u32 two = bytes[0];
        if (shift + job.bits > 8) two |= u32(bytes[1]) << 8;
        static_cast<u8 *>(to)[at] = u8(two >> shift & ((1u << job.bits) - 1));
    }
}

LP_INLINE LP_REAL canonical(LP_REAL x) { return x == x ? x : LP_REAL(bit_cast<float>(Carrier<u32>::nan)); }

// In place. The signs are of indices along the axis.
LP_INLINE void rotate(const RotateJob &job, const void *, void *values, const void *signs, u32 *) {
    const float *sign = static_cast<const float *>(signs);
    const i64 step = i64(gridDim.x) * blockDim.x, length = job.length, half = job.half;
    for (i64 pair = i64(blockIdx.x) * blockDim.x + threadIdx.x; pair < job.pairs; pair += step) {
        const i64 column = pair % job.columns, n = pair / job.columns;
        // A power of two, or 0: blocks of one element, which are only multiplied.
        const i64 within = n & (half - 1), low = 2 * (n - within) + within, high = low + half;
        LP_REAL *x = static_cast<LP_REAL *>(values) + low * job.columns + column, *y = x + half * job.columns;
        LP_REAL a = *x, b = *y;
        if (job.before) a *= sign[low % length], b *= sign[high % length];
        const LP_REAL sum = half ? a + b : a, difference = a - b;
        a = sum * LP_REAL(job.factor), b = difference * LP_REAL(job.factor);
        if (job.after) a *= sign[low % length], b *= sign[high % length];
        if (half) *y = canonical(b);
        *x = canonical(a);
    }
}

typedef decltype(&LP_KERNEL) Kernel;

}  // namespace LP_ISA

template <class Job>
struct JobOf;
template <class Job>
struct JobOf<void (*)(const Job &, const void *, void *, const void *, u32 *)> {
    typedef Job type;
};

}  // namespace lowprec

extern "C" __global__ void __launch_bounds__(256)
    lowprec_layouts(lowprec::JobOf<lowprec::Kernel>::type job, const void *from, void *to, const void *signs,
                    unsigned int *bad) {
    lowprec::LP_KERNEL(job, from, to, signs, bad);
}
