// Block formats in one pass over memory: the largest magnitude of a block, its scale, exact scaling, rounding.
//
// Work goes in groups of block rows whose values stay in the nearest cache. Scaled values are rounded by the loops of
// round.h, in runs, with the random bits of their own index.
#include "blocks/block_scaling.h"
#include "isa/table.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

// Not inlined into every quantiser.
template <int mode>
__attribute__((noinline)) u64v rounded_scales(f64v wanted, const Rounder<u64> &rounder) {
    return round_bits<mode, false, u64v>(bit_cast<u64v>(wanted), u64v{}, rounder);
}
__attribute__((noinline)) f64v scale_values(u64v codes, const Rounder<u64> &rounder) {
    return bit_cast<f64v>(decode(codes, rounder.decoder));
}

// ---- quantising a group ----

// Values of type R, divided by or times numbers of type D, become scaled ones of type S. How is a matter of functions
// and not of types: so there are few of these classes to compile.
template <class R, class S, class D>
struct Quantizer {
    typedef typename Carried<R>::bits E;
    static constexpr int padding = LP_VECTOR_BYTES;

    const BlockJob &job;
    const BlockRows rows;
    const ScalingLoops<R, S, D> scaling;
    Rounder<u64> rounder;                              // of real scales
    bool bad = false, voids = false, special = false;  // special: the group has infinities or NaN
    i64 left = 0, width = 0;
    const R *held = nullptr;  // the group's values, of element held_from
    i64 held_from = 0;
    i64 filled = 0;
    alignas(64) E most[run + padding];
    alignas(64) D factors[run + padding];
    alignas(64) R values[run];
    alignas(64) S scaled[run];

    Quantizer(const BlockJob &j, const ScalingLoops<R, S, D> &how) : job(j), rows{j.shape}, scaling(how) {
        if (job.choice == real_scales) rounder = make_rounder<u64>(job.scale, false);
    }

    const R *at(i64 element, i64 count) {
        if (held) return held + (element - held_from);
        return values_of<R>(job.in, job.source, job.from, element, count, values);
    }

    i64 element(i64 row) const { return row * rows.s.inner + left; }

    // Columns [left, left + width) of block rows [k, end), whose scales are `run` at most.
    void group(i64 k, i64 end, i64 from_column, i64 columns) {
        left = from_column;
        width = columns;
        held = nullptr;
        const i64 first = rows.first(k), last = rows.first(end - 1) + rows.count(end - 1);
        if (width == rows.s.inner && (last - first) * width <= run) {
            held = values_of<R>(job.in, job.source, job.from, first * width, (last - first) * width, values);
            held_from = first * width;
        }
        const i64 size = rows.s.length % rows.s.block == 0 && rows.s.inner == 1 && held ? rows.s.block : 0;
        if (size == 32) return full_blocks<32>(k, end);
        if (size == 16) return full_blocks<16>(k, end);
        measure(k, end);
        choose_scales(k, end);
        convert(k, end);
    }

    // The usual blocks, all whole: a size that the compiler knows.
    template <int size>
    void full_blocks(i64 k, i64 end) {
        const i64 count = end - k;
        for (i64 i = 0; i < count; ++i) most[i] = Magnitudes<R>::template of_run<false>(held + i * size, size);
        voids = special = false;
        const E largest = Magnitudes<R>::template of_run<false>(reinterpret_cast<const R *>(most), count);
        if (largest >= Carrier<E>::infinity) measure(k, end);
        choose_scales(k, end);
        scaling.blocks(held, factors, scaled, count, size);
        filled = count * size;
        if (voids) clear(held, scaled, filled);
        flush(held_from);
    }

    // ---- magnitudes ----

    void measure(i64 k, i64 end) {
        voids = special = false;
        for (i64 j = k; j < end; ++j) {
            E *to = most + (j - k) * width;
            E some = measure_block_row<false>(j, to);
            if (some < Carrier<E>::infinity) continue;
            special = true;
            if (job.voids) mark(j, to);
            if (job.choice != given_scale) measure_block_row<true>(j, to);
        }
    }

    template <bool finite_only>
    E measure_block_row(i64 k, E *to) {
        const i64 first = rows.first(k), count = rows.count(k);
        if (width == 1 && rows.s.inner == 1) {
            E largest = 0;
            for (i64 i = 0; i < count; i += run) {
                const i64 some = count - i < run ? count - i : run;
                const E found = Magnitudes<R>::template of_run<finite_only>(at(first + i, some), some);
                largest = found > largest ? found : largest;
            }
            to[0] = largest;
            return largest;
        }
        for (i64 c = 0; c < width; ++c) to[c] = 0;
        for (i64 row = first; row < first + count; ++row)
            Magnitudes<R>::template of_columns<finite_only>(at(element(row), width), to, width);
        E largest = 0;
        for (i64 c = 0; c < width; ++c) largest = to[c] > largest ? to[c] : largest;
        return largest;
    }

    // ---- scales ----

    u8 marks[run];  // blocks that hold what their elements cannot say

    void mark(i64, E *to) {
        if (!voids) __builtin_memset(marks, 0, sizeof marks);
        voids = true;
        for (i64 c = 0; c < width; ++c) marks[to - most + c] = to[c] >= Carrier<E>::infinity;
    }

    void choose_scales(i64 k, i64 end) {
        const i64 count = (end - k) * width, first = k * rows.s.inner + left;
        if (job.choice == given_scale) {
            for (i64 i = 0; i < count; ++i) factors[i] = D(job.factor);
        } else if (job.choice == power_scales) {
            powers(first, count);
        } else {
            reals(first, count);
        }
        if (!voids) return;
        for (i64 i = 0; i < count; ++i)
            if (marks[i]) store_scale(first + i, job.scale_nan);
    }

    void store_scale(i64 i, u64 code) {
        if (job.scale_bytes == 1) {
            static_cast<u8 *>(job.scales)[i] = u8(code);
        } else {
            __builtin_memcpy(static_cast<char *>(job.scales) + i * job.scale_bytes, &code, job.scale_bytes);
        }
    }

    void powers(i64 first, i64 count) {
        if constexpr (sizeof(R) == 4) {
            for (i64 i = 0; i < count; i += Lanes<u32v>::count) powers_of_lanes(first, i, count);
        } else {
            for (i64 i = 0; i < count; ++i) power_of_double(first, i);
        }
    }

    void powers_of_lanes(i64 first, i64 i, i64 count) {
        constexpr int lanes = Lanes<u32v>::count;
        u32v bits;
        __builtin_memcpy(&bits, most + i, sizeof bits);
        // A subnormal is an integer times 2^-149.
        const u32v small = bit_cast<u32v>(__builtin_convertvector((i32v)bits, f32v));
        const auto tiny = (i32v)bits < i32(Carrier<u32>::one);
        const i32v lift = tiny ? i32v{} + 149 : i32v{};
        const u32v normal = tiny ? small : bits;
        i32v e = (i32v)(normal >> 23) - 127 - lift - job.element_emax;
        const i32 limit = i32((job.carry + ((1u << 29) - 1)) >> 29);
        e -= (i32v)(normal & 0x7fffffu) >= limit;  // true is -1
        e = e > job.largest ? i32v{} + job.largest : e;
        e = (e < job.least) | (bits == 0) ? i32v{} + job.least : e;
        u32v factor = (u32v)(127 - e) << 23;
        factor = e == 127 ? u32v{} + 0x400000u : factor;
        const f32v exact = bit_cast<f32v>(factor);
        __builtin_memcpy(factors + i, &exact, sizeof exact);
        const u32v codes = (u32v)(e + job.code_base);
        if (job.scale_bytes == 1 && i + lanes <= count)
            return store_as(static_cast<u8 *>(job.scales) + first + i, codes);
        for (i64 l = 0; l < lanes && i + l < count; ++l) store_scale(first + i + l, codes[l]);
    }

    void power_of_double(i64 first, i64 i) {
        double size = double(bit_cast<R>(most[i]));
        int lift = 0;
        if (size < 0x1p-1022) {
            size *= 0x1p64;
            lift = 64;
        }
        const u64 bits = bit_cast<u64>(size);
        int e = int(bits >> 52) - 1023 - lift - job.element_emax;
        e += (bits & (Carrier<u64>::one - 1)) >= job.carry;
        e = e > job.largest ? job.largest : e;
        e = e < job.least || size == 0 ? job.least : e;
        store_scale(first + i, u64(e + job.code_base));
        factors[i] = D(bit_cast<double>(u64(1023 - e) << 52));
    }

    // The scale and the divisor of lanes of blocks.
    void reals(i64 first, i64 count) {
        const auto scale_codes = job.scale.mode == up ? rounded_scales<up> : rounded_scales<nearest_even>;
        constexpr int lanes = Lanes<u64v>::count;
        typedef typename VectorOf<E, lanes>::type Sizes;
        typedef typename VectorOf<R, lanes>::type Values;
        for (i64 i = 0; i < count; i += lanes) {
            Sizes sizes;
            __builtin_memcpy(&sizes, most + i, sizeof sizes);
            const f64v amax = __builtin_convertvector(bit_cast<Values>(sizes), f64v);
            f64v wanted = amax / job.wanted_divisor;
            if (job.odd_scales)
                for (int l = 0; l < lanes; ++l) wanted[l] = odd_quotient(amax[l], job.wanted_divisor);
            wanted = wanted > 0x1.fffffffffffffp1023 ? splat_double(0x1.fffffffffffffp1023) : wanted;
            wanted = wanted < job.smallest ? splat_double(job.smallest) : wanted;
            const u64v codes = scale_codes(wanted, rounder);
            const f64v divisors = scale_values(codes, rounder) * job.tensor;
            const auto narrowed = __builtin_convertvector(divisors, typename VectorOf<D, lanes>::type);
            __builtin_memcpy(factors + i, &narrowed, sizeof narrowed);
            if (job.scale_bytes == 1 && i + lanes <= count) {
                store_as(static_cast<u8 *>(job.scales) + first + i, codes);
            } else {
                for (int l = 0; l < lanes && i + l < count; ++l) store_scale(first + i + l, codes[l]);
            }
        }
    }

    static LP_INLINE f64v splat_double(double x) { return x - f64v{}; }

    // ---- codes ----

    void convert(i64 k, i64 end) {
        i64 start = element(rows.first(k));
        filled = 0;
        for (i64 j = k; j < end; ++j) {
            const i64 first = rows.first(j), count = rows.count(j);
            const D *factor = factors + (j - k) * width;
            if (rows.s.inner == 1) {
                scale_block(first, count, *factor, start);
                continue;
            }
            for (i64 row = first; row < first + count; ++row) {
                const bool apart = width < rows.s.inner;  // the next row does not follow this one in memory
                if (filled + width > run || (apart && filled)) start = flush(start);
                if (apart) start = element(row);
                const R *x = at(element(row), width);
                scaling.columns(x, factor, scaled + filled, width);
                if (voids) clear(x, scaled + filled, width);
                filled += width;
            }
        }
        flush(start);
    }

    void scale_block(i64 first, i64 count, D factor, i64 &start) {
        while (count > 0) {
            const i64 room = run - filled, some = count < room ? count : room;
            const R *x = at(first, some);
            scaling.run(x, factor, scaled + filled, some);
            if (voids) clear(x, scaled + filled, some);
            filled += some;
            first += some;
            count -= some;
            if (filled == run) start = flush(start);
        }
    }

    // What an element without NaN cannot say is 0 there.
    static void clear(const R *x, S *to, i64 count) {
        for (i64 i = 0; i < count; ++i)
            if ((bit_cast<E>(x[i]) & Carrier<E>::magnitude) >= Carrier<E>::infinity) to[i] = 0;
    }

    // Rounds what has been scaled, from element `start`; the element behind it.
    i64 flush(i64 start) {
        ConvertJob piece = special ? job.elements : job.finite;
        piece.from = scaled;
        piece.to = static_cast<char *>(job.elements.to) + start * bytes_of(job.elements.out);
        piece.offset += u64(start);
        bad |= rounding_table.convert(piece, 0, filled);
        if (job.integers) to_integers(static_cast<u8 *>(piece.to), filled);
        start += filled;
        filled = 0;
        return start;
    }

    // Sign and magnitude to two's complement.
    static void to_integers(u8 *codes, i64 count) {
        for (i64 i = 0; i < count; ++i) {
            const u8 size = codes[i] & 0x7f, negative = u8(0) - (codes[i] >> 7);
            codes[i] = u8((size ^ negative) - negative);
        }
    }
};

template <class R, class S, class D>
bool quantize_by(const ScalingLoops<R, S, D> &scaling, const BlockJob &job, i64 begin, i64 end, i64 left, i64 right) {
    const BlockRows rows{job.shape};
    Quantizer<R, S, D> quantizer(job, scaling);
    for (i64 k = begin; k < end;) {
        const i64 stop = rows.group_end(k, end, right - left);
        quantizer.group(k, stop, left, right - left);
        k = stop;
    }
    return quantizer.bad;
}

bool quantize(const BlockJob &job, i64 begin, i64 end, i64 left, i64 right) {
    const auto by = [&](const auto &scaling) { return quantize_by(scaling, job, begin, end, left, right); };
    const bool guard = job.guard;
    if (job.wide_in) {
        return by(job.scaling == by_factor ? scaling_loops<double, double, by_factor>(guard)
                                           : scaling_loops<double, double, by_odd_divisor>(guard));
    }
    switch (job.scaling) {
        case by_factor:
            return by(scaling_loops<float, float, by_factor>(guard));
        case by_wide_divisor:
            return by(scaling_loops<float, float, by_wide_divisor>(guard));
        case by_odd_divisor:
            return by(scaling_loops<float, double, by_odd_divisor>(guard));
        default:
            if (job.wide_values) return by(scaling_loops<float, double, by_divisor>(guard));
            return by(scaling_loops<float, float, by_divisor>(guard));
    }
}

}  // namespace

extern const BlockTable block_table;
const BlockTable block_table = {quantize, dequantize_blocks, largest_magnitude};

}  // namespace LP_ISA
}  // namespace lowprec
