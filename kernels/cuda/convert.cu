// Rounding on the GPU: an array of one storage into an array of another, one thread per 8 elements of a block
// of 64.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda.py):
//     LP_LANE    u32 (float32's bits carry the value) or u64 (float64's)
//     LP_FROM    Codes<u8 u16 u32> or Numbers<float double i8 .. u64>
//     LP_TO      Codes<u8 u16 u32 u64> or Numbers<float double>
//     LP_MODE    rounding mode
//     LP_VALUES  1: values on the format's grid, 0: its codes
//     LP_STRIDED 1: any strides, 0: both arrays C-contiguous
//     LP_WAY, LP_END  those of round_fast.h where it serves (in lanes u32), else -1
#include "units.cuh"

#ifndef LP_LANE
#define LP_LANE u32
#define LP_FROM Numbers<float>
#define LP_TO Codes<u16>
#define LP_MODE stochastic
#define LP_VALUES 0
#define LP_STRIDED 0
#define LP_WAY lowprec::scaled
#define LP_END lowprec::symmetric
#endif

namespace lowprec {
inline namespace LP_ISA {

template <class E, class From, class To, int mode, bool values, bool fast>
struct ConverterOf {
    typedef Converter<E, From, To, mode, values> type;
};
template <class E, class From, class To, int mode, bool values>
struct ConverterOf<E, From, To, mode, values, true> {
    typedef FastConverter<From, To, mode, values, LP_WAY, LP_END> type;
};

// Every thread takes the 8 elements of one counter of one block of 64, then moves on by the size of the grid: four
// pairs of neighbours, 16 elements apart. Element i has index offset + i; `lead` is how far into its block the first
// element lies. `bad` is given where the format has no NaN, and raised by a NaN.
template <class E, class From, class To, int mode, bool values>
LP_INLINE void convert_contiguous(const void *from, void *to, i64 count, u64 key, u64 offset, const Conversion &job,
                                  u32 *bad) {
    typedef typename ConverterOf<E, From, To, mode, values, (LP_END >= 0)>::type Convert;
    typedef typename Convert::In In;
    typedef typename Convert::Out Out;
    const Convert convert(job);
    const In *x = static_cast<const In *>(from);
    Out *y = static_cast<Out *>(to);
    const i64 lead = i64(offset & 63);
    const bool pairs = (lead & 1) == 0 && is_aligned<In, 2>(from) && is_aligned<Out, 2>(to);
    const u64 units = (u64(lead + count + 63) >> 6) << 3, step = u64(gridDim.x) * blockDim.x;
    u32 refused = 0;
    for (u64 unit = u64(blockIdx.x) * blockDim.x + threadIdx.x; unit < units; unit += step) {
        const u32 l = u32(unit) & 7;
        const i64 first = i64((unit >> 3) * 64 + 2 * l) - lead;
        const bool whole = pairs && first >= 0 && first + 49 < count;
        Pack<In, 2> in[4] = {};
        if (whole)
            for (int j = 0; j < 4; ++j) in[j] = *reinterpret_cast<const Pack<In, 2> *>(x + first + 16 * j);
        E random[8] = {};
        if constexpr (mode == stochastic) draw((offset >> 6) + (unit >> 3), l, job.rounding.random_bits, key, random);
        if (whole) {
            for (int j = 0; j < 4; ++j) {
                Pack<Out, 2> out;
                for (int i = 0; i < 2; ++i) out.item[i] = convert(in[j].item[i], random[2 * j + i], refused);
                store_pack(y + first + 16 * j, out);
            }
        } else {
            for (int n = 0; n < 8; ++n) {
                const i64 i = first + 16 * (n >> 1) + (n & 1);
                if (i >= 0 && i < count) y[i] = convert(x[i], random[n], refused);
            }
        }
    }
    if (bad && refused) *bad = 1;
}

template <class E, class From, class To, int mode, bool values>
LP_INLINE void convert_strided(const void *from, void *to, i64 count, u64 key, u64 offset, const Conversion &job,
                               u32 *bad, const Strides &strides) {
    typedef typename ConverterOf<E, From, To, mode, values, (LP_END >= 0)>::type Convert;
    const Convert convert(job);
    u32 refused = 0;
    for_elements<E, mode>(count, key, offset, job.rounding.random_bits, [&](i64 i, E random) {
        const char *x = static_cast<const char *>(from) + locate(i, strides, strides.from);
        char *y = static_cast<char *>(to) + locate(i, strides, strides.to);
        *reinterpret_cast<typename Convert::Out *>(y) =
            convert(*reinterpret_cast<const typename Convert::In *>(x), random, refused);
    });
    if (bad && refused) *bad = 1;
}

}  // namespace LP_ISA
}  // namespace lowprec

// Blocks of 256 (THREADS in backends/cuda/device.py), as many at once as the registers allow without spills.
#define LP_BOUNDS __launch_bounds__(256, LP_END >= 0 ? 5 : 3)

#if LP_STRIDED
extern "C" __global__ void LP_BOUNDS lowprec_convert(const void *from, void *to, long long count,
                                                     unsigned long long key, unsigned long long offset,
                                                     lowprec::Conversion job, unsigned int *bad,
                                                     lowprec::Strides strides) {
    using namespace lowprec;
    convert_strided<LP_LANE, LP_FROM, LP_TO, LP_MODE, LP_VALUES>(from, to, count, key, offset, job, bad, strides);
}
#else
extern "C" __global__ void LP_BOUNDS lowprec_convert(const void *from, void *to, long long count,
                                                     unsigned long long key, unsigned long long offset,
                                                     lowprec::Conversion job, unsigned int *bad) {
    using namespace lowprec;
    convert_contiguous<LP_LANE, LP_FROM, LP_TO, LP_MODE, LP_VALUES>(from, to, count, key, offset, job, bad);
}
#endif
