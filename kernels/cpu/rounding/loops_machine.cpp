// Float32 to float16 and bfloat16, nearest-even, and back; codes of eight bits by table. The bits are those of round.h
// and format.h: what is mended here are NaN, which are one, and saturation.
#include <type_traits>

#include "isa/lanes.h"
#include "isa/widths.h"
#include "operands/decode_run.h"
#include "rounding/machine.h"
#include "rounding/storage_panels.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

// ---- stores ----

constexpr i64 beyond_caches = i64(1) << 23;  // bytes: a result of so many would only drive others out of the caches

struct Cached {
    template <class V>
    static LP_INLINE void put(void *to, V v) {
        store(to, v);
    }
    static void done() {}
};

#if defined(__x86_64__)
struct Streamed {
    template <class V>
    static LP_INLINE void put(void *to, V v) {
        if constexpr (sizeof(V) == 8) _mm_stream_si64(static_cast<long long *>(to), bit_cast<long long>(v));
        if constexpr (sizeof(V) == 16) _mm_stream_si128(static_cast<__m128i *>(to), bit_cast<__m128i>(v));
#if defined(__AVX__)
        if constexpr (sizeof(V) == 32) _mm256_stream_si256(static_cast<__m256i *>(to), bit_cast<__m256i>(v));
#endif
#if defined(__AVX512F__)
        if constexpr (sizeof(V) == 64) _mm512_stream_si512(static_cast<__m512i *>(to), bit_cast<__m512i>(v));
#endif
    }
    static void done() { _mm_sfence(); }
};
#else
typedef Cached Streamed;
#endif

struct OneByOne {
    static constexpr bool paired = false;
};

// Way: of(In), a vector from and to arrays of From and To; where `paired`, both(In, In), two at once.
template <class Way, class Store>
void run_stored(const typename Way::From *from, typename Way::To *to, i64 count) {
    i64 i = 0;
    for (; i + 2 * lanes32 <= count; i += 2 * lanes32) {
        const auto first = load<typename Way::In>(from + i), second = load<typename Way::In>(from + i + lanes32);
        if constexpr (Way::paired) {
            Store::put(to + i, Way::both(first, second));
        } else {
            const auto one = Way::of(first), other = Way::of(second);
            Store::put(to + i, one);
            Store::put(to + i + lanes32, other);
        }
    }
    for (; i < count; i += lanes32) {
        const i64 left = count - i;
        const auto codes = Way::of(load_some<typename Way::In>(from + i, left < lanes32 ? left : lanes32));
        if (left < lanes32)
            store_some(to + i, codes, left);
        else
            store(to + i, codes);
    }
    Store::done();
}

// Elements [begin, end) of a job.
template <class Way, class Job>
void run(const Job &job, i64 begin, i64 end) {
    const auto *from = static_cast<const typename Way::From *>(job.from) + begin;
    auto *to = static_cast<typename Way::To *>(job.to) + begin;
    const i64 count = end - begin, all = job.count > count ? job.count : count;
    if (all * i64(sizeof *to) < beyond_caches) return run_stored<Way, Cached>(from, to, count);
    const i64 to_line = i64((64 - reinterpret_cast<u64>(to) % 64) % 64 / sizeof *to);
    const i64 head = to_line < count ? to_line : count;
    run_stored<Way, Cached>(from, to, head);
    run_stored<Way, Streamed>(from + head, to + head, count - head);
}

// ---- rounding ----

template <bool saturate>
LP_INLINE u16v half_of(f32v x) {
    x = with_one_nan(x);
    if (saturate) {  // infinities too; NaN stays
        x = x > splat_real(65504.0f) ? splat_real(65504.0f) : x;
        x = x < splat_real(-65504.0f) ? splat_real(-65504.0f) : x;
    }
    return real_to_half(x);
}

template <bool saturate>
struct ToHalf : OneByOne {
    typedef float From;
    typedef u16 To;
    typedef f32v In;
    static LP_INLINE u16v of(f32v x) { return half_of<saturate>(x); }
};

template <bool saturate>
struct OnHalfGrid : OneByOne {
    typedef float From, To;
    typedef f32v In;
    static LP_INLINE f32v of(f32v x) { return half_to_real(half_of<saturate>(x)); }
};

// The upper half is the code; a carry into the exponent is the next binade or infinity.
LP_INLINE u32v bfloat_in_place(f32v x) {
    const u32v nan = u32v{} + 0x7fc00000u;
    const u32v bits = bit_cast<u32v>(x), sum = bits + 0x7fffu + ((bits >> 16) & 1);
    return x == x ? sum : nan;
}

struct ToBfloat {
    typedef float From;
    typedef u16 To;
    typedef f32v In;
    static LP_INLINE u16v of(f32v x) { return narrow<u16, 4, lanes32>(bfloat_in_place(x) >> 16); }
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
    static constexpr bool paired = true;
    static LP_INLINE __m512i rounded(f32v x) {
        const __m512i bits = (__m512i)x, last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    }
    static LP_INLINE __m512i both(f32v x, f32v y) {
        alignas(64) u16 odd[32];
        for (int i = 0; i < 32; ++i) odd[i] = u16(2 * i + 1);
        const __m512i upper_halves = _mm512_load_si512(odd);
        __m512i first = rounded(x), second = rounded(y);
        if (__builtin_expect(_mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_UNORD_Q) != 0, 0)) {
            first = (__m512i)bfloat_in_place(x);
            second = (__m512i)bfloat_in_place(y);
        }
        return _mm512_permutex2var_epi16(first, upper_halves, second);
    }
#else
    static constexpr bool paired = false;
#endif
};

struct OnBfloatGrid : OneByOne {
    typedef float From, To;
    typedef f32v In;
    static LP_INLINE f32v of(f32v x) { return bit_cast<f32v>(bfloat_in_place(x) & 0xffff0000u); }
};

bool is_half(const Format &f) {
    return f.exponent_bits == 5 && f.mantissa_bits == 10 && f.emin == -14 && f.inf_code == 0x7c00 &&
           f.max_code == 0x7bff && f.nan_code == 0x7e00 && f.sign_bit == 0x8000 && f.subnormals && f.negative_zero;
}

bool is_bfloat(const Format &f) {
    return f.exponent_bits == 8 && f.mantissa_bits == 7 && f.emin == -126 && f.inf_code == 0x7f80 &&
           f.max_code == 0x7f7f && f.nan_code == 0x7fc0 && f.sign_bit == 0x8000 && f.subnormals && f.negative_zero;
}

// Whether infinities and what lies beyond the largest become one magnitude with their sign.
bool has_one_end(const Rounding &r) {
    return r.over_pos == r.inf_pos && r.over_neg == r.inf_neg && r.over_neg == (r.over_pos | r.format.sign_bit);
}

template <class Codes, class Values>
bool run_either(const ConvertJob &job, i64 begin, i64 end) {
    if (job.as_value)
        run<Values>(job, begin, end);
    else
        run<Codes>(job, begin, end);
    return true;
}

}  // namespace

MachineWay machine_way(const ConvertJob &job) {
    const Rounding &r = job.rounding;
    const Format &f = r.format;
    if (job.in != real32 || r.mode != nearest_even || r.flush) return MachineWay::none;
    if (job.out != (job.as_value ? real32 : coded16)) return MachineWay::none;
    if (!has_one_end(r)) return MachineWay::none;
    if (has_half && is_half(f) && r.over_pos == f.inf_code) return MachineWay::half;
    if (has_half && is_half(f) && r.over_pos == f.max_code) return MachineWay::saturated_half;
    return is_bfloat(f) && r.over_pos == f.inf_code ? MachineWay::bfloat : MachineWay::none;
}

bool convert_by_machine(const ConvertJob &job, i64 begin, i64 end) {
    switch (machine_way(job)) {
        case MachineWay::half:
            return run_either<ToHalf<false>, OnHalfGrid<false>>(job, begin, end);
        case MachineWay::saturated_half:
            return run_either<ToHalf<true>, OnHalfGrid<true>>(job, begin, end);
        case MachineWay::bfloat:
            return run_either<ToBfloat, OnBfloatGrid>(job, begin, end);
        default:
            return false;
    }
}

// ---- decoding ----

namespace {

struct FromHalf : OneByOne {
    typedef u16 From;
    typedef float To;
    typedef u16v In;
    static LP_INLINE f32v of(u16v x) { return with_one_nan(half_to_real(x)); }
};

struct FromBfloat : OneByOne {
    typedef u16 From;
    typedef float To;
    typedef u16v In;
    static LP_INLINE f32v of(u16v x) { return with_one_nan(bfloat_to_real(x)); }
};

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
constexpr i64 worth_a_table = 1024;  // elements

// Through a table of all codes, which a thread keeps of its last format.
bool decode_bytes(const DecodeJob &job, i64 begin, i64 end) {
    thread_local struct {
        Format format = {};
        CodeTable table;
    } last;
    static_assert(std::has_unique_object_representations_v<Format>);
    if (__builtin_memcmp(&job.format, &last.format, sizeof(Format))) {
        alignas(64) u8 codes[256];
        alignas(64) u32 values[256];
        for (int i = 0; i < 256; ++i) codes[i] = u8(i);
        load_codes<u32, u8>(codes, 0, 256, values, make_decoder<u32>(job.format));
        last.table.fill(values);
        last.format = job.format;
    }
    if (!last.table.in_top) return false;
    decode_codes(&last.table, static_cast<const char *>(job.from) + begin, static_cast<float *>(job.to) + begin,
                 end - begin);
    return true;
}
#endif

}  // namespace

bool decode_by_machine(const DecodeJob &job, i64 begin, i64 end) {
    if (job.out != real32) return false;
    if (job.in == coded16 && is_half(job.format)) {
        run<FromHalf>(job, begin, end);
        return true;
    }
    if (job.in == coded16 && is_bfloat(job.format)) {
        run<FromBfloat>(job, begin, end);
        return true;
    }
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
    if (job.in == coded8 && job.format.emin >= -126 && end - begin >= worth_a_table)
        return decode_bytes(job, begin, end);
#endif
    return false;
}

}  // namespace LP_ISA
}  // namespace lowprec
