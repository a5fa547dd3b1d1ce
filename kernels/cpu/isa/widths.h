// Loads and stores that change the width of elements. gcc 12 takes a conversion by more than a factor of two apart into
// scalars, except where one instruction narrows; so the others go step by step.
#ifndef LOWPREC_WIDTHS_H
#define LOWPREC_WIDTHS_H

#include "lowprec/bits.h"

namespace lowprec {
inline namespace LP_ISA {

// A vector of `count` elements T, whatever its size.
template <class T, int count>
struct VectorOf {
    typedef T type __attribute__((vector_size(sizeof(T) * count)));
};

template <int bytes>
struct Unsigned;
template <>
struct Unsigned<1> {
    typedef u8 type;
};
template <>
struct Unsigned<2> {
    typedef u16 type;
};
template <>
struct Unsigned<4> {
    typedef u32 type;
};
template <>
struct Unsigned<8> {
    typedef u64 type;
};

// Elements of `from_bytes` each, zero-extended to the lanes of V.
template <class V, int from_bytes, class P>
LP_INLINE V widen(P p) {
    if constexpr (from_bytes >= sizeof(typename Lanes<V>::element)) {
        return __builtin_convertvector(p, V);
    } else {
        typedef typename VectorOf<typename Unsigned<2 * from_bytes>::type, Lanes<V>::count>::type Next;
        return widen<V, 2 * from_bytes>(__builtin_convertvector(p, Next));
    }
}

// Lanes of `from_bytes` each, cut down to T.
template <class T, int from_bytes, int count, class P>
LP_INLINE typename VectorOf<T, count>::type narrow(P p) {
    typedef typename VectorOf<T, count>::type Result;
    if constexpr (from_bytes == sizeof(T)) {
        return Result(p);
    } else if constexpr (LP_VECTOR_BYTES == 64) {
        return __builtin_convertvector(p, Result);
    } else {
        typedef typename VectorOf<typename Unsigned<from_bytes / 2>::type, count>::type Next;
        return narrow<T, from_bytes / 2, count>(__builtin_convertvector(p, Next));
    }
}

template <class V, class T>
LP_INLINE V load_as(const T *from) {
    constexpr int count = Lanes<V>::count;
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    if constexpr (sizeof(T) == 1 && count == 16) {
        typedef char bytes __attribute__((vector_size(16)));
        bytes b;
        __builtin_memcpy(&b, from, sizeof b);
        return (V)__builtin_ia32_pmovzxbd512_mask(b, i32v{}, (unsigned short)-1);
    }
#elif defined(__AVX2__) && LP_VECTOR_BYTES == 32
    if constexpr (sizeof(T) == 1 && count == 8) {
        typedef char bytes __attribute__((vector_size(16)));
        typedef i64 half __attribute__((vector_size(16)));
        half h = {};
        __builtin_memcpy(&h, from, 8);
        return (V)__builtin_ia32_pmovzxbd256((bytes)h);
    }
#endif
    typename VectorOf<T, count>::type p;
    __builtin_memcpy(&p, from, sizeof p);
    return widen<V, sizeof(T)>(p);
}

template <class T, class V>
LP_INLINE void store_as(T *to, V v) {
    if constexpr (sizeof(T) > sizeof(typename Lanes<V>::element)) {
        const auto p = __builtin_convertvector(v, typename VectorOf<T, Lanes<V>::count>::type);
        __builtin_memcpy(to, &p, sizeof p);
    } else {
        const auto p = narrow<T, sizeof(typename Lanes<V>::element), Lanes<V>::count>(v);
        __builtin_memcpy(to, &p, sizeof p);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
