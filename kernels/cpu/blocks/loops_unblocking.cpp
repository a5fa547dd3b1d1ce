// From block formats back to values, and magnitudes of whole arrays.
#include "blocks/block_values.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

template <class R>
double magnitude_in(const MagnitudeJob &job, i64 begin, i64 end) {
    R values[run];
    typename Carried<R>::bits most = 0;
    for (i64 i = begin; i < end; i += run) {
        const i64 count = end - i < run ? end - i : run;
        const R *x = values_of<R>(job.in, job.source, job.from, i, count, values);
        auto some = Magnitudes<R>::template of_run<false>(x, count);
        if (some >= Carrier<decltype(some)>::infinity) some = Magnitudes<R>::template of_run<true>(x, count);
        most = some > most ? some : most;
    }
    return double(bit_cast<R>(most));
}

}  // namespace

double largest_magnitude(const MagnitudeJob &job, i64 begin, i64 end) {
    return job.in == real64 ? magnitude_in<double>(job, begin, end) : magnitude_in<float>(job, begin, end);
}

namespace {

// ---- and back ----

template <class R>
struct Spreader {
    typedef typename VectorOf<R, LP_VECTOR_BYTES / int(sizeof(R))>::type V;
    typedef u64 Words __attribute__((vector_size(LP_VECTOR_BYTES)));
    static constexpr int lanes = LP_VECTOR_BYTES / int(sizeof(R));

    const SpreadJob &job;
    const BlockRows rows;
    R tensor;
    bool has_tensor;
    u8 above = 0, found = 0;  // bits above the format's width, in codes of one byte
    alignas(64) R scales[run];

    explicit Spreader(const SpreadJob &j) : job(j), rows{j.shape}, tensor(R(j.tensor)), has_tensor(j.tensor != 1.0) {
        const Format &f = job.element;
        if (job.in == coded8) above = u8(~(f.sign_bit | ((1ull << (f.exponent_bits + f.mantissa_bits)) - 1)));
    }

    void group(i64 k, i64 end, i64 left, i64 width) {
        const i64 inner = rows.s.inner, first_scale = k * inner + left;
        if (job.given) {
            for (i64 i = 0; i < (end - k) * width; ++i) scales[i] = R(job.factor);
        } else {
            const char *from = static_cast<const char *>(job.scales) + first_scale * bytes_of(job.scales_in);
            rounding_table.decode({job.scale, job.scales_in, Carried<R>::storage, from, scales}, 0, (end - k) * width);
        }
        const i64 first = rows.first(k), last = rows.first(end - 1) + rows.count(end - 1);
        const bool together = width == inner && (last - first) * width <= run;
        if (together) decode(first * inner, (last - first) * inner);
        for (i64 j = k; j < end; ++j) {
            const R *scale = scales + (j - k) * width;
            const i64 start = rows.first(j), count = rows.count(j);
            if (inner == 1) {
                for (i64 i = 0; i < count; i += run) {
                    const i64 some = count - i < run ? count - i : run;
                    if (!together) decode(start + i, some);
                    multiply(start + i, some, *scale);
                }
                continue;
            }
            for (i64 row = start; row < start + count; ++row) {
                if (!together) decode(row * inner + left, width);
                multiply_columns(row * inner + left, width, scale);
            }
        }
    }

    void decode(i64 at, i64 count) {
        R *to = static_cast<R *>(job.to) + at;
        if (job.integers) {
            return decode_integers(static_cast<const i8 *>(job.from) + at, to, count);
        }
        const char *from = static_cast<const char *>(job.from) + at * bytes_of(job.in);
        if (above) found |= all_bits(from, count);
        rounding_table.decode({job.element, job.in, Carried<R>::storage, from, to}, 0, count);
    }

    void decode_integers(const i8 *from, R *to, i64 count) const {
        i64 i = 0;
        if constexpr (sizeof(R) == 4) {
            const f32v quantum = float(job.quantum) - f32v{};
            for (; i + lanes <= count; i += lanes) {
                const u32v codes = load_as<u32v>(reinterpret_cast<const u8 *>(from) + i);
                const i32v numbers = (i32v)((codes ^ 0x80u) - 0x80u);
                const f32v v = __builtin_convertvector(numbers, f32v) * quantum;
                __builtin_memcpy(to + i, &v, sizeof v);
            }
        }
        for (; i < count; ++i) to[i] = R(from[i]) * R(job.quantum);
    }

    static u8 all_bits(const char *codes, i64 count) {
        V all = {}, v;
        i64 i = 0;
        for (; i + i64(sizeof v) <= count; i += sizeof v) {
            __builtin_memcpy(&v, codes + i, sizeof v);
            all = (V)((Words)all | (Words)v);
        }
        u8 bytes[sizeof v], bits = 0;
        __builtin_memcpy(bytes, &all, sizeof v);
        for (u8 byte : bytes) bits |= byte;
        for (; i < count; ++i) bits |= u8(codes[i]);
        return bits;
    }

    LP_INLINE V product(V v, V scale) const { return has_tensor ? v * scale * tensor : v * scale; }

    // Values [at, at + count) times one scale.
    void multiply(i64 at, i64 count, R scale) const {
        R *to = static_cast<R *>(job.to) + at;
        const V s = scale - V{};
        V v = {};
        i64 i = 0;
        for (; i + lanes <= count; i += lanes) {
            __builtin_memcpy(&v, to + i, sizeof v);
            v = product(v, s);
            __builtin_memcpy(to + i, &v, sizeof v);
        }
        for (; i < count; ++i) to[i] = product(to[i] - V{}, s)[0];
    }

    // Values [at, at + count) times a scale each.
    void multiply_columns(i64 at, i64 count, const R *scale) const {
        R *to = static_cast<R *>(job.to) + at;
        V v = {}, s = {};
        i64 i = 0;
        for (; i + lanes <= count; i += lanes) {
            __builtin_memcpy(&v, to + i, sizeof v);
            __builtin_memcpy(&s, scale + i, sizeof s);
            v = product(v, s);
            __builtin_memcpy(to + i, &v, sizeof v);
        }
        for (; i < count; ++i) to[i] = product(to[i] - V{}, scale[i] - V{})[0];
    }
};

template <class R>
bool dequantize_to(const SpreadJob &job, i64 begin, i64 end, i64 left, i64 right) {
    Spreader<R> spreader(job);
    for (i64 k = begin; k < end;) {
        const i64 stop = spreader.rows.group_end(k, end, right - left);
        spreader.group(k, stop, left, right - left);
        k = stop;
    }
    return (spreader.found & spreader.above) != 0;
}

}  // namespace

bool dequantize_blocks(const SpreadJob &job, i64 begin, i64 end, i64 left, i64 right) {
    if (job.out == real64) return dequantize_to<double>(job, begin, end, left, right);
    return dequantize_to<float>(job, begin, end, left, right);
}

}  // namespace LP_ISA
}  // namespace lowprec
