// Operands of a product brought into the order in which the tile kernels read them, decoded to float32.
#ifndef LOWPREC_PACK_H
#define LOWPREC_PACK_H

#include "decode_run.h"

namespace lowprec {
inline namespace LP_ISA {

inline int bytes_of(Element element) { return element == Element::real32 ? 4 : element == Element::table8 ? 1 : 2; }

// to[k * width + column] for `columns` columns; lanes before `skip` and after the columns are 0.
struct PanelShape {
    i64 k, skip, columns, width;
};

template <Element element>
void pack_rows(const char *from, long k_stride, const PanelShape &p, float *to) {
    constexpr int bytes = element == Element::real32 ? 4 : 2;
    for (i64 k = 0; k < p.k; ++k, to += p.width) {
        const char *row = from + k * k_stride;
        for (i64 j = 0; j < p.width; j += lanes32) {
            if (element == Element::real32)
                store(to + j, load<f32v>(row + j * bytes));
            else
                store(to + j, element == Element::half ? half_to_real(load<u16v>(row + j * bytes))
                                                       : bfloat_to_real(load<u16v>(row + j * bytes)));
        }
    }
}

// Columns that lie along k: a square of lanes32 columns x lanes32 steps at a time, turned in scratch.
inline void pack_columns(Element element, const float *table, const char *from, long k_stride, long column_stride,
                         const PanelShape &p, float *to) {
    constexpr i64 run = 64;
    alignas(64) float scratch[run][lanes32 + 1];
    alignas(64) float line[run];
    for (i64 j = 0; j < p.width; j += lanes32)
        for (i64 k = 0; k < p.k; k += run) {
            const i64 length = p.k - k < run ? p.k - k : run;
            for (i64 lane = 0; lane < lanes32; ++lane) {
                const i64 column = j + lane - p.skip;
                if (column < 0 || column >= p.columns) {
                    for (i64 i = 0; i < length; ++i) scratch[i][lane] = 0;
                    continue;
                }
                decode_run(element, table, from + column * column_stride + k * k_stride, k_stride, line, length);
                for (i64 i = 0; i < length; ++i) scratch[i][lane] = line[i];
            }
            for (i64 i = 0; i < length; ++i)
                __builtin_memcpy(to + (k + i) * p.width + j, scratch[i], sizeof(float) * lanes32);
        }
}

// One panel of the right operand; `from` is its first column.
inline void pack_panel(Element element, const float *table, const char *from, long k_stride, long column_stride,
                       const PanelShape &p, float *to) {
    const bool whole = p.skip == 0 && p.columns == p.width && column_stride == bytes_of(element);
    if (whole && element == Element::real32) return pack_rows<Element::real32>(from, k_stride, p, to);
    if (whole && element == Element::half) return pack_rows<Element::half>(from, k_stride, p, to);
    if (whole && element == Element::bfloat) return pack_rows<Element::bfloat>(from, k_stride, p, to);
    const bool along_k = k_stride == bytes_of(element) && column_stride != bytes_of(element);
    if (along_k) return pack_columns(element, table, from, k_stride, column_stride, p, to);
    for (i64 k = 0; k < p.k; ++k, to += p.width) {
        for (i64 j = 0; j < p.skip; ++j) to[j] = 0;
        decode_run(element, table, from + k * k_stride, column_stride, to + p.skip, p.columns);
        for (i64 j = p.skip + p.columns; j < p.width; ++j) to[j] = 0;
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
