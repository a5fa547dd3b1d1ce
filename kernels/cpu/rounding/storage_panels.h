// Elements of any storage, loaded into the carrier's lanes in which they are rounded or decoded.
#ifndef LOWPREC_STORAGE_PANELS_H
#define LOWPREC_STORAGE_PANELS_H

#include "isa/lanes.h"
#include "isa/widths.h"
#include "rounding/rounding_jobs.h"

namespace lowprec {
inline namespace LP_ISA {

template <class E>
struct Vector;
template <>
struct Vector<u32> {
    typedef u32v type;
};
template <>
struct Vector<u64> {
    typedef u64v type;
};

template <class E, class T>
void load_codes(const void *from, i64 begin, int count, E *to, const Decoder<E> &decoder) {
    const Decoder<E> d = decoder;  // a copy, so that no store can change it
    const T *codes = static_cast<const T *>(from) + begin;
    typedef typename Vector<E>::type V;
    int i = 0;
    for (; i + Lanes<V>::count <= count; i += Lanes<V>::count) store_as(to + i, decode(load_as<V>(codes + i), d));
    for (; i < count; ++i) to[i] = decode(E(codes[i]), d);
}

template <class E, class T>
void load_numbers(const void *from, i64 begin, int count, E *to) {
    const T *numbers = static_cast<const T *>(from) + begin;
    typedef typename Lanes<E>::real R;
    for (int i = 0; i < count; ++i) to[i] = bit_cast<E>(R(numbers[i]));
}

// Doubles into the narrow carrier, rounded to odd: a rounding of those to at least two bits less, in any mode that
// looks at no bit below them, is the rounding of the doubles themselves.
inline void load_doubles(const void *from, i64 begin, int count, u32 *to) {
    const double *numbers = static_cast<const double *>(from) + begin;
    int i = 0;
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    for (; i + 8 <= count; i += 8) {
        const __m512d x = _mm512_loadu_pd(numbers + i);
        const __m256i inward = (__m256i)_mm512_cvt_roundpd_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd((__m256)inward), x, _CMP_NEQ_OQ);
        _mm256_storeu_si256((__m256i *)(to + i), _mm256_mask_or_epi32(inward, inexact, inward, _mm256_set1_epi32(1)));
    }
#endif
    for (; i < count; ++i) {
        const float near = float(numbers[i]);
        const double back = near, x = numbers[i];
        const bool outward = (back < 0 ? -back : back) > (x < 0 ? -x : x);
        to[i] = (bit_cast<u32>(near) - u32(outward)) | u32(back < x || back > x);
    }
}

// 64-bit integers are not here: they have more bits than the carrier (see convert_integers).
template <class E>
void load_panel(const ConvertJob &job, const Decoder<E> &d, i64 begin, int count, E *to) {
    switch (job.in) {
        case coded8:
            return load_codes<E, u8>(job.from, begin, count, to, d);
        case coded16:
            return load_codes<E, u16>(job.from, begin, count, to, d);
        case coded32:
            return load_codes<E, u32>(job.from, begin, count, to, d);
        case real32:
            return load_numbers<E, float>(job.from, begin, count, to);
        case real64:
            if constexpr (sizeof(E) == 4) return load_doubles(job.from, begin, count, to);
            return load_numbers<E, double>(job.from, begin, count, to);
        case int8s:
            return load_numbers<E, i8>(job.from, begin, count, to);
        case int16s:
            return load_numbers<E, i16>(job.from, begin, count, to);
        case int32s:
            return load_numbers<E, i32>(job.from, begin, count, to);
        case uint8s:
            return load_numbers<E, u8>(job.from, begin, count, to);
        case uint16s:
            return load_numbers<E, u16>(job.from, begin, count, to);
        case uint32s:
            return load_numbers<E, u32>(job.from, begin, count, to);
        default:
            return;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
