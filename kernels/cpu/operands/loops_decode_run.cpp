// Runs of stored elements to float32.
#include "operands/decode_run.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

template <Element element>
LP_INLINE float read_one(const char *at, const CodeTable *table) {
    if constexpr (element == Element::real32) {
        return load<float>(at);  // at any address
    } else if constexpr (element == Element::half) {
        return half_to_real(u16v{load<u16>(at)})[0];
    } else if constexpr (element == Element::bfloat) {
        return bit_cast<float>(u32(load<u16>(at)) << 16);
    } else {
        return table->value[load<u8>(at)];
    }
}

template <Element element>
void decode_strided(const char *from, long stride, const CodeTable *table, float *to, i64 count) {
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

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
// The values of 32 codes at a time: their upper halves are found in registers.
struct CodeLanes {
    __m512i part[8];
    bool mirrored = true;  // the codes from 128 on are the first ones' with the other sign; NaN has one

    explicit CodeLanes(const CodeTable *table) {
        for (int i = 0; i < 8; ++i) part[i] = _mm512_loadu_si512(table->top + 32 * i);
        for (int i = 0; i < 4; ++i) {
            const __m512i other = with_one_nan(_mm512_xor_si512(part[i], _mm512_set1_epi16(short(0x8000))));
            mirrored &= _mm512_cmpeq_epi16_mask(other, part[i + 4]) == ~__mmask32(0);
        }
    }

    static LP_INLINE __m512i with_one_nan(__m512i tops) {
        const __mmask32 negative = _mm512_cmpeq_epi16_mask(tops, _mm512_set1_epi16(short(0xffc0)));
        return _mm512_mask_mov_epi16(tops, negative, _mm512_set1_epi16(0x7fc0));
    }

    // Codes below 64 come from the first two parts, and so on.
    template <bool halved>
    LP_INLINE __m512i tops(__m512i at) const {
        const __mmask32 second = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
        const __m512i low = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(part[0], at, part[1]), second,
                                                  _mm512_permutex2var_epi16(part[2], at, part[3]));
        if (halved) {
            const __m512i sign = _mm512_set1_epi16(short(0x8000));
            const __m512i turned = _mm512_slli_epi16(at, 8);
            return with_one_nan(_mm512_ternarylogic_epi32(low, turned, sign, 0x78));  // low ^ (turned & sign)
        }
        const __mmask32 upper = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
        const __m512i high = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(part[4], at, part[5]), second,
                                                   _mm512_permutex2var_epi16(part[6], at, part[7]));
        return _mm512_mask_mov_epi16(low, upper, high);
    }
};

template <bool halved>
void decode_line(const CodeLanes &lanes, const char *from, float *to, i64 count) {
    // Fours of codes in such an order that the halves of each 128 bits belong to neighbouring results.
    const __m256i fours = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i zero = _mm512_setzero_si512();
    i64 i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i));
        const __m512i tops = lanes.tops<halved>(_mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(codes, fours)));
        _mm512_storeu_si512(to + i, _mm512_unpacklo_epi16(zero, tops));
        _mm512_storeu_si512(to + i + 16, _mm512_unpackhi_epi16(zero, tops));
    }
    if (i == count) return;
    const __mmask32 mask = (__mmask32(1) << (count - i)) - 1;
    const __m256i codes = _mm256_maskz_loadu_epi8(mask, from + i);
    const __m512i tops = lanes.tops<halved>(_mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(codes, fours)));
    _mm512_mask_storeu_epi32(to + i, __mmask16(mask), _mm512_unpacklo_epi16(zero, tops));
    _mm512_mask_storeu_epi32(to + i + 16, __mmask16(mask >> 16), _mm512_unpackhi_epi16(zero, tops));
}

void decode_line(const CodeLanes &lanes, const char *from, float *to, i64 count) {
    lanes.mirrored ? decode_line<true>(lanes, from, to, count) : decode_line<false>(lanes, from, to, count);
}

bool in_lanes(const CodeTable *table, long stride, i64 count) {
    return stride == 1 && count >= lanes32 && table->in_top;
}

#endif

}  // namespace

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
void decode_codes(const CodeTable *table, const char *from, float *to, i64 count) {
    decode_line(CodeLanes(table), from, to, count);
}
#endif

void decode_run(Element element, const CodeTable *table, const char *from, long stride, float *to, i64 count) {
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
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
            if (in_lanes(table, stride, count)) return decode_codes(table, from, to, count);
#endif
            decode_strided<Element::table8>(from, stride, table, to, count);
    }
}

void decode_rows(Element element, const CodeTable *table, const char *from, long row, long stride, float *to,
                 i64 to_row, i64 rows, i64 count) {
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
    if (element == Element::table8 && in_lanes(table, stride, count)) {
        const CodeLanes lanes(table);
        for (i64 i = 0; i < rows; ++i) decode_line(lanes, from + i * row, to + i * to_row, count);
        return;
    }
#endif
    for (i64 i = 0; i < rows; ++i) decode_run(element, table, from + i * row, stride, to + i * to_row, count);
}

}  // namespace LP_ISA
}  // namespace lowprec
