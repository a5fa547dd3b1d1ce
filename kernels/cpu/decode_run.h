// Runs of stored elements to float32.
#ifndef LOWPREC_DECODE_RUN_H
#define LOWPREC_DECODE_RUN_H

#include "lanes.h"
#include "operand.h"

namespace lowprec {
inline namespace LP_ISA {

template <Element element>
LP_INLINE float read_one(const char *at, const float *table) {
    if constexpr (element == Element::real32) {
        return *reinterpret_cast<const float *>(at);
    } else if constexpr (element == Element::half) {
        return half_to_real(u16v{*reinterpret_cast<const u16 *>(at)})[0];
    } else if constexpr (element == Element::bfloat) {
        return bit_cast<float>(u32(*reinterpret_cast<const u16 *>(at)) << 16);
    } else {
        return table[*reinterpret_cast<const u8 *>(at)];
    }
}

template <Element element>
void decode_strided(const char *from, long stride, const float *table, float *to, i64 count) {
    for (i64 i = 0; i < count; ++i) to[i] = read_one<element>(from + i * stride, table);
}

template <Element element>
void decode_contiguous16(const char *from, float *to, i64 count) {
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32) {
        const u16v bits = load<u16v>(from + 2 * i);
        store(to + i, element == Element::half ? half_to_real(bits) : bfloat_to_real(bits));
    }
    for (; i < count; ++i) to[i] = read_one<element>(from + 2 * i, nullptr);
}

// `count` elements from `from`, `stride` bytes apart, to contiguous floats.
inline void decode_run(Element element, const float *table, const char *from, long stride, float *to, i64 count) {
    if (stride == 0) {
        float value = 0;
        if (count) decode_run(element, table, from, 1, &value, 1);
        for (i64 i = 0; i < count; ++i) to[i] = value;
        return;
    }
    switch (element) {
        case Element::real32:
            if (stride == 4) {
                __builtin_memcpy(to, from, count * 4);
            } else {
                decode_strided<Element::real32>(from, stride, table, to, count);
            }
            break;
        case Element::half:
            if (stride == 2) {
                decode_contiguous16<Element::half>(from, to, count);
            } else {
                decode_strided<Element::half>(from, stride, table, to, count);
            }
            break;
        case Element::bfloat:
            if (stride == 2) {
                decode_contiguous16<Element::bfloat>(from, to, count);
            } else {
                decode_strided<Element::bfloat>(from, stride, table, to, count);
            }
            break;
        case Element::table8:
            decode_strided<Element::table8>(from, stride, table, to, count);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
