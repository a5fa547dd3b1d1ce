// The aligned adder of products: the terms of a group, cut so many places behind the largest exponent, added exactly.
//
// A term is less than 4 in units of the largest exponent, so that in units of the last place kept it is an integer of
// at most 37 bits: doubles add up to 2^16 of them without error.
#ifndef LOWPREC_ALIGNED_H
#define LOWPREC_ALIGNED_H

#include "product/chain.h"
#include "product/doubles.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr int no_exponent = -4096, least_top = 254 - 400;  // less than two zeros have; less than any product has

// Biased exponents; subnormal numbers have the smallest normal's, zeros none.
LP_INLINE i32v exponents(f32v x, int least) {
    const u32v bits = bit_cast<u32v>(x);
    const i32v field = bit_cast<i32v>((bits >> 23) & 0xffu), floor = i32v{} + (least + 127);
    const i32v exponent = field > floor ? field : floor;
    return (bits & 0x7fffffffu) == 0 ? i32v{} + no_exponent : exponent;
}

LP_INLINE i32v larger_of(i32v a, i32v b) { return a > b ? a : b; }

// The largest exponent of a group's terms, with the bias of two exponents.
LP_INLINE i32v largest_exponents(const float *a, const float *b, const Chain &c, i64 count, f32v partial) {
    i32v top = larger_of(exponents(partial, -126) + 127, i32v{} + least_top);
    for (i64 i = 0; i < count; ++i) {
        const i32v left = exponents(splat_real(a[i * c.a_k]), c.alignment.a_least);
        top = larger_of(top, exponents(load<f32v>(b + i * c.b_k), c.alignment.b_least) + left);
    }
    return top;
}

// A number cut toward zero to whole quanta; `lift` is 2^52 of them.
LP_INLINE f64v cut_to(f64v x, f64v quantum, f64v lift) {
    const u64v bits = bit_cast<u64v>(x), sign = bits & (u64(1) << 63);
    const f64v size = bit_cast<f64v>(bits ^ sign), near = (size + lift) - lift;
    return bit_cast<f64v>(bit_cast<u64v>(near > size ? near - quantum : near) | sign);
}

// A double cut toward zero to float32, or rounded to odd; 2^128 and more become infinite.
inline float cut_to_float(double x, bool to_odd) {
    float near = float(x);
    if (double(near) == x || x != x) return near;
    const double size = x < 0 ? -x : x;
    if (size >= 0x1p128) return near;
    u32 bits = bit_cast<u32>(near);
    if ((near < 0 ? -double(near) : double(near)) > size) --bits;
    return bit_cast<float>(to_odd ? bits | 1 : bits);
}

__attribute__((noinline)) inline f32v cut_lanes(const Doubles &sum, bool to_odd) {
    double lanes[lanes32];
    __builtin_memcpy(lanes, &sum, sizeof lanes);
    f32v result = {};
    for (int i = 0; i < lanes32; ++i) result[i] = cut_to_float(lanes[i], to_odd);
    return result;
}

// The same for vectors: the last 29 bits of a double go, but below float32's normal numbers, where more do.
LP_INLINE f32v cut_to_floats(const Doubles &sum, bool to_odd) {
    const u64 behind = (u64(1) << 29) - 1, mark = to_odd ? u64(1) << 29 : 0;
    Doubles kept;
    u64v tiny = {};
    for (int h = 0; h < 2; ++h) {
        const u64v bits = bit_cast<u64v>(sum.part[h]), size = bits & ~(u64(1) << 63);
        tiny |= (u64v)(size - 1 < bit_cast<u64>(0x1p-126) - 1);
        kept.part[h] = bit_cast<f64v>((bits & ~behind) | ((bits & behind) != 0 ? u64v{} + mark : u64v{}));
    }
    return __builtin_expect(any_set(tiny), 0) ? cut_lanes(sum, to_odd) : floats(kept);
}

// The partial sums and `count` products.
LP_INLINE f32v add_aligned(const float *a, const float *b, const Chain &c, i64 count, f32v partial, bool to_odd) {
    typedef int i32_pair __attribute__((vector_size(LP_VECTOR_BYTES / 2)));
    const i32v top = largest_exponents(a, b, c, count, partial) + (1023 - 254 - c.alignment.bits);
    Doubles quantum, lift, sum = doubles(partial);
    for (int h = 0; h < 2; ++h) {
        i32_pair half;
        __builtin_memcpy(&half, reinterpret_cast<const char *>(&top) + h * sizeof half, sizeof half);
        quantum.part[h] = bit_cast<f64v>(__builtin_convertvector(half, u64v) << 52);
        lift.part[h] = quantum.part[h] * 0x1p52;
        sum.part[h] = cut_to(sum.part[h], quantum.part[h], lift.part[h]) + 0.0;
    }
    for (i64 i = 0; i < count; ++i) {
        const Doubles right = doubles(load<f32v>(b + i * c.b_k));
        const double left = a[i * c.a_k];
        for (int h = 0; h < 2; ++h) sum.part[h] += cut_to(right.part[h] * left, quantum.part[h], lift.part[h]);
    }
    return cut_to_floats(sum, to_odd);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
