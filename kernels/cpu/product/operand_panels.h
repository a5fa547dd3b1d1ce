// Operands of a product brought into the order in which the tile kernels read them, decoded to float32.
#ifndef LOWPREC_OPERAND_PANELS_H
#define LOWPREC_OPERAND_PANELS_H

#include "isa/turn.h"
#include "operands/decode_run.h"
#include "product/turn_codes.h"

namespace lowprec {
inline namespace LP_ISA {

inline int bytes_of(Element element) { return element == Element::real32 ? 4 : element == Element::table8 ? 1 : 2; }

// to[k * width + column] for `columns` columns; lanes before `skip` and after the columns are 0.
struct PanelShape {
    i64 k, skip, columns, width, advance;  // advance: floats from one row to the next, at least width
};

template <Element element, bool whole>
void pack_rows(const char *from, long k_stride, const PanelShape &p, float *to) {
    constexpr int bytes = element == Element::real32 ? 4 : 2;
    for (i64 k = 0; k < p.k; ++k, to += p.advance) {
        const char *row = from + k * k_stride;
        for (i64 j = 0; j < p.width; j += lanes32) {
            const long rest = p.columns > j ? p.columns - j : 0;  // panels may be wider by whole vectors
            const long left = whole || rest > lanes32 ? lanes32 : rest;
            if constexpr (element == Element::real32) {
                store(to + j, whole ? load<f32v>(row + j * bytes) : load_some<f32v>(row + j * bytes, left));
            } else {
                const u16v bits = whole ? load<u16v>(row + j * bytes) : load_some<u16v>(row + j * bytes, left);
                store(to + j, element == Element::half ? half_to_real(bits) : bfloat_to_real(bits));
            }
        }
    }
}

template <Element element>
void pack_rows_of(const char *from, long k_stride, const PanelShape &p, float *to) {
    if (p.columns == p.width)
        pack_rows<element, true>(from, k_stride, p, to);
    else
        pack_rows<element, false>(from, k_stride, p, to);
}

// Contiguous rows of the kinds that vectors decode; false for the others.
inline bool pack_rows_of_kind(Element element, const char *from, long stride, const PanelShape &p, float *to) {
    switch (element) {
        case Element::real32:
            pack_rows_of<Element::real32>(from, stride, p, to);
            return true;
        case Element::half:
            pack_rows_of<Element::half>(from, stride, p, to);
            return true;
        case Element::bfloat:
            pack_rows_of<Element::bfloat>(from, stride, p, to);
            return true;
        default:
            return false;
    }
}

// The first `count` <= lanes32 of contiguous elements.
template <Element element>
LP_INLINE f32v read_some(const CodeTable *table, const char *from, i64 count) {
    if constexpr (element == Element::table8) {
        alignas(64) float v[lanes32] = {};
        decode_run(element, table, from, 1, v, count);
        return load<f32v>(v);
    } else {
        static_assert(element == Element::real32);
        return count == lanes32 ? load<f32v>(from) : load_some<f32v>(from, count);
    }
}

// Columns that lie along k: a square of lanes32 columns x lanes32 steps at a time, turned in registers.
template <Element element>
void pack_columns(const CodeTable *table, const char *from, long column_stride, const PanelShape &p, float *to) {
    constexpr int bytes = element == Element::real32 ? 4 : 1;
    for (i64 j = 0; j < p.width; j += lanes32)
        for (i64 k = 0; k < p.k; k += lanes32) {
            const i64 length = p.k - k < lanes32 ? p.k - k : lanes32;
            f32v square[lanes32];
            for (i64 lane = 0; lane < lanes32; ++lane) {
                const i64 column = j + lane - p.skip;
                const bool empty = column < 0 || column >= p.columns;
                square[lane] =
                    empty ? f32v{} : read_some<element>(table, from + column * column_stride + k * bytes, length);
            }
            turn(square);
            for (i64 i = 0; i < length; ++i) store(to + (k + i) * p.width + j, square[i]);
        }
}

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
// What becomes of a code: itself, or its value.
template <Element element>
LP_INLINE void put(u16 *to, u16v codes) {
    store(to, codes);
}
template <Element element>
LP_INLINE void put(float *to, u16v codes) {
    store(to, element == Element::half ? half_to_real(codes) : bfloat_to_real(codes));
}

// `steps` codes of sixteen columns, turned a square at a time.
template <Element element, class To>
__attribute__((noinline)) void pack_squares(const char *column, long column_stride, i64 steps, To *to, i64 width) {
    for (; steps > 0; steps -= lanes32, column += 2 * lanes32) {
        // Opaque, so that the addresses of all lines are made of few numbers, and do not stand on the stack.
        __asm__ volatile("" : "+r"(column), "+r"(to));
        u16v square[lanes32];
        turn_lines(column, column_stride, square);
        if (steps < lanes32) {
            for (i64 i = 0; i < steps; ++i) put<element>(to + i * width, square[i]);
            return;
        }
#pragma GCC unroll 16
        for (i64 i = 0; i < lanes32; ++i, to += width) put<element>(to, square[i]);
    }
}

// The same for elements of 16 bits.
template <Element element, class To>
void pack_columns16(const char *from, long column_stride, const PanelShape &p, To *to) {
    for (i64 j = 0; j < p.width; j += lanes32) {
        const i64 first = p.skip > j ? p.skip - j : 0, last = smaller(p.columns + p.skip - j, i64(lanes32));
        const char *column = from + (j - p.skip) * column_stride;
        const i64 whole = first == 0 && last == lanes32 ? p.k / lanes32 * lanes32 : 0;
        pack_squares<element>(column, column_stride, whole, to + j, p.width);
        for (i64 k = whole; k < p.k; k += lanes32) {
            const i64 length = smaller(p.k - k, i64(lanes32));
            u16v lines[lanes32];
            for (i64 lane = 0; lane < lanes32; ++lane) {
                const bool empty = lane < first || lane >= last;
                lines[lane] = empty ? u16v{} : load_some<u16v>(column + lane * column_stride + 2 * k, length);
            }
            pack_squares<element>(reinterpret_cast<const char *>(lines), sizeof lines[0], length, to + k * p.width + j,
                                  p.width);
        }
    }
}
#else
// The same for elements of 16 bits: eight steps at a time, 16 bytes of a column, are turned as four numbers.
template <Element element>
void pack_columns16(const char *from, long column_stride, const PanelShape &p, float *to) {
    for (i64 j = 0; j < p.width; j += lanes32)
        for (i64 k = 0; k < p.k; k += 8) {
            const i64 length = p.k - k < 8 ? p.k - k : 8;
            FourLines lines = {};
            const char *column = from + (j - p.skip) * column_stride + 2 * k;
            const i64 first = p.skip > j ? p.skip - j : 0, last = p.columns + p.skip - j;
            for (i64 lane = first; lane < lanes32 && lane < last; ++lane)
                copy_few(lines.line(lane), column + lane * column_stride, 2 * length);
            u32v turned[4];
            for (int i = 0; i < 4; ++i) turned[i] = load<u32v>(lines.vector[i]);
            turn_fours(turned);
#pragma GCC unroll 8
            for (i64 i = 0; i < 8; ++i) {
                if (i == length) break;
                const u32v code = i % 2 ? turned[i / 2] >> 16 : turned[i / 2] & 0xffff;
                const u16v bits = __builtin_convertvector(code, u16v);
                store(to + (k + i) * p.width + j, element == Element::half ? half_to_real(bits) : bfloat_to_real(bits));
            }
        }
}
#endif

// One panel of the right operand; `from` is its first column.
inline void pack_panel(Element element, const CodeTable *table, const char *from, long k_stride, long column_stride,
                       const PanelShape &p, float *to) {
    const bool rows = p.skip == 0 && column_stride == bytes_of(element);
    if (rows && pack_rows_of_kind(element, from, k_stride, p, to)) return;
    const bool along_k = k_stride == bytes_of(element) && column_stride != bytes_of(element);
    if (along_k) {
        switch (element) {
            case Element::real32:
                return pack_columns<Element::real32>(table, from, column_stride, p, to);
            case Element::half:
                return pack_columns16<Element::half>(from, column_stride, p, to);
            case Element::bfloat:
                return pack_columns16<Element::bfloat>(from, column_stride, p, to);
            default:
                return pack_columns<Element::table8>(table, from, column_stride, p, to);
        }
    }
    for (i64 k = 0; k < p.k; ++k) {
        for (i64 j = 0; j < p.skip; ++j) to[k * p.width + j] = 0;
        for (i64 j = p.skip + p.columns; j < p.width; ++j) to[k * p.width + j] = 0;
    }
    decode_rows(element, table, from, k_stride, column_stride, to + p.skip, p.width, p.k, p.columns);
}

// The largest magnitude of `rows` rows of `count` floats, as bits; NaN is larger than infinity.
inline u32 largest_of(const float *from, i64 rows, i64 line, i64 count) {
    u32v top = {};
    for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < count; j += lanes32) {
            const float *at = from + i * line + j;
            const u32v bits = count - j < lanes32 ? load_some<u32v>(at, count - j) : load<u32v>(at);
            top = larger(top, bits & 0x7fffffffu);
        }
    u32 most = 0;
    for (int lane = 0; lane < lanes32; ++lane) most = most < top[lane] ? top[lane] : most;
    return most;
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
