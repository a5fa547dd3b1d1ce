// Decoding on the GPU: codes of any format into float or double, one thread per 4 elements.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda.py):
//     LP_LANE    u32, or u64 for double and for formats that reach below float's normals
//     LP_FROM    Codes<u8 u16 u32 u64>
//     LP_TO      Numbers<float double>
//     LP_STRIDED 1: any strides, 0: both arrays C-contiguous
#include "storage.cuh"

#ifndef LP_LANE
#define LP_LANE u32
#define LP_FROM Codes<u8>
#define LP_TO Numbers<float>
#define LP_STRIDED 0
#endif

namespace lowprec {
inline namespace LP_ISA {

LP_INLINE int width(const Format &f) { return f.exponent_bits + f.mantissa_bits + (f.sign_bit != 0); }

// `bad`, where it is given, is raised by a code wider than the format's `bits`.
template <class E, class From, class To>
LP_INLINE typename To::stored decode_one(typename From::stored code, const Decoder<E> &source, int bits, u32 *bad) {
    if (bad && u64(code) >> bits) *bad = 1;
    return To::template store<true>(From::load(code, source), Rounder<E>());
}

template <class E, class From, class To>
LP_INLINE void decode_contiguous(const void *from, void *to, i64 count, const Format &format, u32 *bad) {
    typedef typename From::stored In;
    typedef typename To::stored Out;
    const Decoder<E> source = make_decoder<E>(format);
    const int bits = width(format);
    const In *codes = static_cast<const In *>(from);
    Out *values = static_cast<Out *>(to);
    const i64 whole = is_aligned<In, 4>(from) && is_aligned<Out, 4>(to) ? count / 4 : 0;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
    for (i64 quad = thread; quad < whole; quad += step) {
        Pack<In, 4> x = reinterpret_cast<const Pack<In, 4> *>(from)[quad];
        Pack<Out, 4> y;
        for (int i = 0; i < 4; ++i) y.item[i] = decode_one<E, From, To>(x.item[i], source, bits, bad);
        reinterpret_cast<Pack<Out, 4> *>(to)[quad] = y;
    }
    for (i64 i = 4 * whole + thread; i < count; i += step)
        values[i] = decode_one<E, From, To>(codes[i], source, bits, bad);
}

template <class E, class From, class To>
LP_INLINE void decode_strided(const void *from, void *to, i64 count, const Format &format, u32 *bad,
                              const Strides &strides) {
    const Decoder<E> source = make_decoder<E>(format);
    const int bits = width(format);
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
    for (i64 i = thread; i < count; i += step) {
        const char *x = static_cast<const char *>(from) + locate(i, strides, strides.from);
        char *y = static_cast<char *>(to) + locate(i, strides, strides.to);
        *reinterpret_cast<typename To::stored *>(y) =
            decode_one<E, From, To>(*reinterpret_cast<const typename From::stored *>(x), source, bits, bad);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec

#if LP_STRIDED
extern "C" __global__ void lowprec_decode(const void *from, void *to, long long count, lowprec::Format format,
                                          unsigned int *bad, lowprec::Strides strides) {
    using namespace lowprec;
    decode_strided<LP_LANE, LP_FROM, LP_TO>(from, to, count, format, bad, strides);
}
#else
extern "C" __global__ void lowprec_decode(const void *from, void *to, long long count, lowprec::Format format,
                                          unsigned int *bad) {
    using namespace lowprec;
    decode_contiguous<LP_LANE, LP_FROM, LP_TO>(from, to, count, format, bad);
}
#endif
