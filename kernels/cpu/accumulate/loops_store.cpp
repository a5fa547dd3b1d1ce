// Sums brought to where their results lie: in float32, in float64, or in codes of a format.
#include "accumulate/store.h"
#include "isa/turn.h"
#include "isa/widths.h"

namespace lowprec {
inline namespace LP_ISA {

Store::Store(const Destination &target) : out(target), rounder(make_rounder<u32>(target.store, false)) {
    const Format &f = target.store.format;
    half = has_half && target.storage == coded16 && f.mantissa_bits == 10 && f.emin == -14 && f.inf_code;
    bfloat = target.storage == coded16 && f.mantissa_bits == 7 && f.emin == -126 && f.inf_code;
    powers = !f.zero && f.emin == -127;
}

LP_INLINE u16v Store::code16(f32v x) const {
    if (half) return real_to_half(with_one_nan(x));
    return __builtin_convertvector(bit_cast<u32v>(with_one_nan(x)) >> 16, u16v);
}

template <class Code, bool exponents>
void Store::codes(const float *from, char *to, i64 count) const {
    const Rounder<u32> k = rounder;
    for (i64 i = 0; i < count; i += lanes32) {
        const u32v bits = load<u32v>(from + i);
        const u32v code = exponents ? bits >> 23 & 0xff : round_bits<nearest_even, false>(bits, u32v{}, k);
        if (out.column == sizeof(Code) && i + lanes32 <= count) {
            store_as(reinterpret_cast<Code *>(to) + i, code);
            continue;
        }
        for (int lane = 0; lane < lanes32 && i + lane < count; ++lane) {
            const Code c = Code(code[lane]);
            __builtin_memcpy(to + (i + lane) * out.column, &c, sizeof c);
        }
    }
}

// Every thread that meets one writes the same.
void Store::note_nan(const float *from, i64 count) const {
    for (i64 i = 0; i < count; ++i)
        if (from[i] != from[i]) __atomic_store_n(out.nan_met, true, __ATOMIC_RELAXED);
}

void Store::row(const float *from, char *to, i64 count) const {
    i64 i = 0;
    if (out.nan_met) note_nan(from, count);
    if (out.storage == real32 && out.column == 4) {
        for (; i + lanes32 <= count; i += lanes32) store(to + 4 * i, with_one_nan(load<f32v>(from + i)));
        if (i < count) store_some(to + 4 * i, with_one_nan(load<f32v>(from + i)), count - i);
    } else if (out.storage == real32) {
        for (; i < count; ++i) store(to + i * out.column, with_one_nan(from[i]));
    } else if (out.storage == real64) {
        for (; i < count; ++i) store(to + i * out.column, with_one_nan(double(from[i])));
    } else if ((half || bfloat) && out.column == 2) {
        for (; i + lanes32 <= count; i += lanes32) store(to + 2 * i, code16(load<f32v>(from + i)));
        if (i < count) store_some(to + 2 * i, code16(load<f32v>(from + i)), count - i);
    } else if (out.item_bytes == 1) {
        powers ? codes<u8, true>(from, to, count) : codes<u8, false>(from, to, count);
    } else {
        codes<u16, false>(from, to, count);
    }
}

// Where rows lie together: 16 bytes of them at a time are turned.
void Store::rows_turned(const float *from, i64 width, char *to, i64 rows, i64 count) const {
    const i64 at_once = 16 / out.item_bytes;
    for (i64 i = 0; i < rows; i += at_once, from += at_once * width, to += at_once * out.row) {
        const i64 high = rows - i < at_once ? rows - i : at_once;
        for (i64 j = 0; j < count; j += lanes32) {
            u32v turned[4] = {};
            if (out.storage == real32) {
                for (i64 k = 0; k < high; ++k)
                    turned[k] = bit_cast<u32v>(with_one_nan(load<f32v>(from + k * width + j)));
            } else {
                for (i64 k = 0; k < high; ++k) {
                    const u32v code = __builtin_convertvector(code16(load<f32v>(from + k * width + j)), u32v);
                    turned[k / 2] |= k % 2 ? code << 16 : code;
                }
            }
            turn_fours(turned);
            FourLines lines;
            for (int k = 0; k < 4; ++k) store(lines.vector[k], turned[k]);
            const i64 wide = count - j < lanes32 ? count - j : lanes32;
            char *line = to + j * out.column;
            for (i64 k = 0; k < wide; ++k, line += out.column) copy_few(line, lines.line(k), high * out.item_bytes);
        }
    }
}

void Store::rows(const float *from, i64 width, char *to, i64 rows, i64 count) const {
    const bool by_vectors = half || bfloat || out.storage == real32;
    if (rows > 1 && by_vectors && !out.nan_met && out.column != out.item_bytes && out.row == out.item_bytes)
        return rows_turned(from, width, to, rows, count);
    if (!half || out.column != 2 || out.nan_met) {
        for (i64 i = 0; i < rows; ++i) row(from + i * width, to + i * out.row, count);
        return;
    }
    for (i64 i = 0; i < rows; ++i, from += width, to += out.row) {
        i64 j = 0;
        for (; j + lanes32 <= count; j += lanes32) store(to + 2 * j, real_to_half(with_one_nan(load<f32v>(from + j))));
        if (j < count) store_some(to + 2 * j, real_to_half(with_one_nan(load<f32v>(from + j))), count - j);
    }
}

}  // namespace LP_ISA
}  // namespace lowprec
