// Values of block formats: how they are read, their magnitudes, and where the rows of blocks lie.
#ifndef LOWPREC_BLOCK_VALUES_H
#define LOWPREC_BLOCK_VALUES_H

#include "blocks/block_jobs.h"
#include "isa/lanes.h"
#include "isa/table.h"
#include "isa/widths.h"

namespace lowprec {
inline namespace LP_ISA {

extern const RoundingTable rounding_table;

bool dequantize_blocks(const SpreadJob &job, i64 begin, i64 end, i64 left, i64 right);
double largest_magnitude(const MagnitudeJob &job, i64 begin, i64 end);

template <class R>
struct Carried;
template <>
struct Carried<float> {
    typedef u32 bits;
    typedef i32 sign;
    typedef u32v vector;
    static constexpr Storage storage = real32;
    static constexpr u32 largest = 0x7f7fffffu;
};
template <>
struct Carried<double> {
    typedef u64 bits;
    typedef i64 sign;
    typedef u64v vector;
    static constexpr Storage storage = real64;
    static constexpr u64 largest = 0x7fefffffffffffffull;
};

constexpr int run = 2048;  // values scaled and rounded together, and scales of a group

// What float16 and bfloat16 are to the machine; other formats go through their numbers.
enum class Sixteen { neither, half, bfloat };
inline Sixteen sixteen(Storage in, const Format &f) {
    if (in != coded16 || !f.subnormals || !f.inf_code) return Sixteen::neither;
    if (f.mantissa_bits == 10 && f.emin == -14) return Sixteen::half;
    return f.mantissa_bits == 7 && f.emin == -126 ? Sixteen::bfloat : Sixteen::neither;
}

template <Sixteen kind>
inline void decode_sixteen(const char *from, i64 count, float *to) {
    const auto value = [](u16v code) { return kind == Sixteen::half ? half_to_real(code) : bfloat_to_real(code); };
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32) store(to + i, value(load<u16v>(from + 2 * i)));
    if (i == count) return;
    const f32v rest = value(load_some<u16v>(from + 2 * i, count - i));
    __builtin_memcpy(to + i, &rest, (count - i) * 4);
}

// `count` values from element `begin`: where they are, or decoded into `to`.
template <class R>
const R *values_of(Storage in, const Format &source, const void *from, i64 begin, i64 count, R *to) {
    if (in == Carried<R>::storage) return static_cast<const R *>(from) + begin;
    if constexpr (sizeof(R) == 4) {
        const Sixteen kind = sixteen(in, source);
        const char *codes = static_cast<const char *>(from) + 2 * begin;
        if (kind == Sixteen::half) return decode_sixteen<Sixteen::half>(codes, count, to), to;
        if (kind == Sixteen::bfloat) return decode_sixteen<Sixteen::bfloat>(codes, count, to), to;
    }
    if (in == real32) {
        for (i64 i = 0; i < count; ++i) to[i] = R(static_cast<const float *>(from)[begin + i]);
        return to;
    }
    const char *start = static_cast<const char *>(from) + begin * bytes_of(in);
    rounding_table.decode({source, in, Carried<R>::storage, start, to}, 0, count);
    return to;
}

// ---- magnitudes, as bits: NaN is larger than infinity ----

template <class R>
struct Magnitudes {
    typedef typename Carried<R>::bits E;
    typedef typename Carried<R>::vector Bits;
    static constexpr int lanes = Lanes<Bits>::count;
    typedef typename VectorOf<typename Carried<R>::sign, lanes>::type V;  // signed maxima are one instruction

    // In `finite_only`, infinity and NaN count as 0.
    template <bool finite_only>
    static LP_INLINE V larger_of(V most, const void *x, i64 bytes) {
        Bits bits = {};
        if (bytes >= i64(sizeof bits))
            __builtin_memcpy(&bits, x, sizeof bits);
        else
            __builtin_memcpy(&bits, x, bytes);
        V size = (V)(bits & Carrier<E>::magnitude);
        if constexpr (finite_only) size = size >= V{} + Carrier<E>::infinity ? V{} : size;
        return larger(size, most);
    }

    template <int step>
    static LP_INLINE E largest_lane(V v) {
        if constexpr (step == 0) {
            return E(v[0]);
        } else {
            static constexpr struct Turn {
                E lane[lanes];
                constexpr Turn() : lane() {
                    for (int i = 0; i < lanes; ++i) lane[i] = E(i ^ step);
                }
            } turn;
            V order;
            __builtin_memcpy(&order, turn.lane, sizeof order);
            return largest_lane<step / 2>(larger(v, __builtin_shuffle(v, order)));
        }
    }

    template <bool finite_only>
    static LP_INLINE E of_run(const R *x, i64 count) {
        V most = {}, more = {};
        i64 i = 0;
        for (; i + 2 * lanes <= count; i += 2 * lanes) {
            most = larger_of<finite_only>(most, x + i, sizeof most);
            more = larger_of<finite_only>(more, x + i + lanes, sizeof more);
        }
        for (; i < count; i += lanes) most = larger_of<finite_only>(most, x + i, (count - i) * i64(sizeof(R)));
        return largest_lane<lanes / 2>(larger(most, more));
    }

    template <bool finite_only>
    static void of_columns(const R *x, E *most, i64 count) {
        V m = {};
        i64 i = 0;
        for (; i + lanes <= count; i += lanes) {
            __builtin_memcpy(&m, most + i, sizeof m);
            m = larger_of<finite_only>(m, x + i, sizeof m);
            __builtin_memcpy(most + i, &m, sizeof m);
        }
        if (i < count) {
            const i64 bytes = (count - i) * i64(sizeof(R));
            m = V{};
            __builtin_memcpy(&m, most + i, bytes);
            m = larger_of<finite_only>(m, x + i, bytes);
            __builtin_memcpy(most + i, &m, bytes);
        }
    }
};

// ---- where block rows lie ----

struct BlockRows {
    BlockShape s;

    i64 first(i64 k) const {
        if (s.lines == 1) return k * s.block;  // divisions are slow
        return k / s.per_line * s.length + k % s.per_line * s.block;
    }

    i64 count(i64 k) const {
        const i64 rest = s.length - (s.lines == 1 ? k : k % s.per_line) * s.block;
        return rest < s.block ? rest : s.block;
    }

    // The end of a group of block rows from k: as many as have about `run` values. Their values lie together.
    i64 group_end(i64 k, i64 end, i64 width) const {
        const i64 many = width == s.inner ? run / (s.block * width) : 1;
        return k + (many > 1 ? many : 1) < end ? k + (many > 1 ? many : 1) : end;
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
