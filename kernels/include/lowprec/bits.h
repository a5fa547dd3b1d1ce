// Lane types, bit casts and selects: the same text serves one element and a native vector of them.
//
// No header of this folder includes a standard header, so that NVRTC compiles them unchanged. A function
// template over a lane type L is called with `u32` (tails, GPU threads) or with a vector of them; comparisons
// of vectors give masks and `mask ? a : b` selects per lane, as in scalar code.
#ifndef LOWPREC_BITS_H
#define LOWPREC_BITS_H

#ifdef __CUDACC__
#define LP_INLINE __host__ __device__ __forceinline__
#else
#define LP_INLINE inline __attribute__((always_inline))
#endif

// The headers speak gcc; NVRTC has the same IEEE operations under other names.
#ifdef __CUDACC_RTC__
#define __builtin_memcpy memcpy
#define __builtin_clzll __clzll
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_sqrt __dsqrt_rn
#define __builtin_sqrtf __fsqrt_rn
#define __builtin_fma __fma_rn
#define __builtin_fmaf __fmaf_rn
#endif

// Each instruction set's object has its own namespace: no symbol of one may be linked into another.
#ifndef LP_ISA
#define LP_ISA scalar
#endif

namespace lowprec {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

inline namespace LP_ISA {

#ifdef LP_VECTOR_BYTES
typedef u32 u32v __attribute__((vector_size(LP_VECTOR_BYTES)));
typedef u64 u64v __attribute__((vector_size(LP_VECTOR_BYTES)));
typedef i32 i32v __attribute__((vector_size(LP_VECTOR_BYTES)));
typedef i64 i64v __attribute__((vector_size(LP_VECTOR_BYTES)));
typedef float f32v __attribute__((vector_size(LP_VECTOR_BYTES)));
typedef double f64v __attribute__((vector_size(LP_VECTOR_BYTES)));
#endif

// What a lane type is made of: its element, and the float and signed lanes of the same shape.
template <class L>
struct Lanes;
template <>
struct Lanes<u32> {
    typedef u32 element;
    typedef float real;
    static constexpr int count = 1;
};
template <>
struct Lanes<u64> {
    typedef u64 element;
    typedef double real;
    static constexpr int count = 1;
};
#ifdef LP_VECTOR_BYTES
template <>
struct Lanes<u32v> {
    typedef u32 element;
    typedef f32v real;
    static constexpr int count = LP_VECTOR_BYTES / 4;
};
template <>
struct Lanes<u64v> {
    typedef u64 element;
    typedef f64v real;
    static constexpr int count = LP_VECTOR_BYTES / 8;
};
#endif

template <class To, class From>
LP_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between different sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Of a number that is not 0.
LP_INLINE int leading_zeros(u64 number) { return __builtin_clzll(number); }

// A lane with the same number everywhere.
template <class L>
LP_INLINE L splat(typename Lanes<L>::element value) {
    return L{} + value;
}

template <class L>
LP_INLINE L smaller(L a, L b) {
    return a < b ? a : b;
}

template <class L>
LP_INLINE L larger(L a, L b) {
    return a > b ? a : b;
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
