// Exact arithmetic on operands that float32 holds, in float32 lanes.
//
// A float32 result is the IEEE operation itself, and so is the float32 that float16 operands need on their way to a
// float16 result, nearest-even: it has more than twice float16's bits, and no quotient of those is nearer to the middle
// between two float16 values than it can tell (Figueroa, "When is double rounding innocuous?", SIGNUM 30, 1995). Any
// product of two float16 numbers is a float32. For other narrower results the operation and what it lacks (Knuth's sum,
// or a remainder by a fused multiply-add) give the float32 that rounds further as the exact result: rounded to odd, or
// for stochastic rounding cut off, where float32 has all the bits that are compared with random ones. Where it has not,
// the floats on both sides of the exact result are rounded with the same random bits: no rounding is decreasing, so
// what both become is what the exact result becomes. A piece where they differ, or where a remainder may not be exact,
// goes through doubles.
#include "elementwise/exact_job.h"
#include "elementwise/read_piece.h"
#include "elementwise/vector_runs.h"
#include "isa/fast_paths.h"
#include "isa/table.h"
#include "lowprec/elementwise.h"
#include "rounding/piece_converter.h"

namespace lowprec {
inline namespace LP_ISA {

int exact(const ExactJob &job, i64 begin, i64 end);

namespace {

constexpr i64 piece = 512;

enum Target { none, same, near_enough, to_odd_bits, cut_off, both_sides };

// ---- float32 results ----

template <int operation>
LP_INLINE f32v nearest(f32v a, f32v b, f32v c) {
    if constexpr (operation == exact_add) return a + b;
    if constexpr (operation == exact_subtract) return a - b;
    if constexpr (operation == exact_multiply) return a * b;
    if constexpr (operation == exact_divide) return a / b;
    if constexpr (operation == exact_sqrt) return root(a);
    return fused(a, b, c);
}

template <int operation>
void nearest_piece(const float *a, const float *b, const float *c, float *to, i64 count) {
    const auto apply = [](f32v x, f32v y, f32v z) { return with_one_nan(nearest<operation>(x, y, z)); };
    run_vectors(apply, a, b, c, to, count);
}

typedef void (*Nearest)(const float *, const float *, const float *, float *, i64);
const Nearest nearest_pieces[] = {nearest_piece<exact_add>,      nearest_piece<exact_subtract>,
                                  nearest_piece<exact_multiply>, nearest_piece<exact_divide>,
                                  nearest_piece<exact_sqrt>,     nearest_piece<exact_fma>};

// ---- narrower results ----

constexpr float least = 0x1p-100f;  // above it no error of a product or remainder underflows
constexpr float most = 0x1p126f;    // below it no sum or difference on the way overflows

// An operation rounded to nearest, a number with the sign of what it lacks (or NaN, where it lacks nothing), and the
// lanes in which that may be wrong.
struct Near {
    f32v value, error;
    i32v unsure;
};

LP_INLINE f32v magnitude(f32v x) { return bit_cast<f32v>(bit_cast<u32v>(x) & 0x7fffffffu); }
LP_INLINE i32v is_finite(f32v x) { return magnitude(x) < splat_real(__builtin_inff()); }

LP_INLINE Near sum_of(f32v a, f32v b, bool down) {
    Near x;
    x.value = a + b;
    const f32v part = x.value - a;
    x.error = (a - (x.value - part)) + (b - part);
    x.unsure = (magnitude(x.value) >= splat_real(most)) & is_finite(a) & is_finite(b);
    if (down) {  // a sum of zero is -0 unless both terms are +0
        const u32v signs = (bit_cast<u32v>(a) | bit_cast<u32v>(b)) & 0x80000000u;
        x.value = x.value == f32v{} ? bit_cast<f32v>(signs) : x.value;
    }
    return x;
}

LP_INLINE Near product_of(f32v a, f32v b) {
    Near x;
    x.value = a * b;
    x.error = fused(a, b, -x.value);
    const f32v size = magnitude(x.value);
    const i32v small = (size < splat_real(least)) & (a != f32v{}) & (b != f32v{});
    x.unsure = (small | (size >= splat_real(most))) & is_finite(a) & is_finite(b);
    return x;
}

LP_INLINE Near quotient_of(f32v a, f32v b) {
    Near x;
    x.value = a / b;
    const f32v rest = fused(-x.value, b, a), size = magnitude(x.value);
    x.error = bit_cast<f32v>(bit_cast<u32v>(rest) ^ (bit_cast<u32v>(b) & 0x80000000u));
    const i32v plain = is_finite(a) & is_finite(b) & (a != f32v{}) & (b != f32v{});
    const i32v odd_size = (magnitude(a) < splat_real(least)) | (size < splat_real(least)) | (size >= splat_real(most));
    x.unsure = plain & odd_size;
    x.error = plain ? x.error : f32v{};
    return x;
}

LP_INLINE Near root_of(f32v a) {
    Near x;
    x.value = root(a);
    x.error = is_finite(a) ? fused(-x.value, x.value, a) : f32v{};
    x.unsure = (a > f32v{}) & (a < splat_real(least));
    return x;
}

template <int operation>
LP_INLINE Near near(f32v a, f32v b, bool down) {
    if constexpr (operation == exact_add) return sum_of(a, b, down);
    if constexpr (operation == exact_subtract) return sum_of(a, -b, down);
    if constexpr (operation == exact_multiply) return product_of(a, b);
    if constexpr (operation == exact_divide) return quotient_of(a, b);
    return root_of(a);
}

// The floats that stand for the exact results, and those beyond them where `target` wants both sides.
struct Stand {
    alignas(64) float inner[piece + lanes32], outer[piece + lanes32];
};

enum Found { unsure = 1, inexact = 2 };  // bits

template <int operation>
int stand_for(const float *a, const float *b, bool down, Target target, Stand &to, i64 count) {
    i32v any_unsure = {}, any_inexact = {};
    for (i64 i = 0; i < count; i += lanes32) {
        const i64 left = count - i < lanes32 ? count - i : lanes32;
        const f32v p = left < lanes32 ? load_some<f32v>(a + i, left) : load<f32v>(a + i);
        const f32v q = left < lanes32 ? load_some<f32v>(b + i, left) : load<f32v>(b + i);
        const Near x = near<operation>(p, q, down);
        const u32v bits = bit_cast<u32v>(x.value);
        const i32v off = (x.error < f32v{}) | (x.error > f32v{});
        const i32v outward = ~(bit_cast<i32v>(bits ^ bit_cast<u32v>(x.error)) >> 31);
        any_unsure |= x.unsure;
        any_inexact |= off;
        if (target == to_odd_bits) {
            const u32v step = (u32v)outward & 2;  // with the 1 below: one place outward or inward
            const u32v odd = (bits & 1) == 0 ? bits + step - 1 : bits;
            store(to.inner + i, off ? bit_cast<f32v>(odd) : x.value);
            continue;
        }
        const u32v inner = bits + (u32v)(off & ~outward);
        store(to.inner + i, bit_cast<f32v>(inner));
        store(to.outer + i, bit_cast<f32v>(inner - (u32v)off));
    }
    return (any_set((u32v)any_unsure) ? unsure : 0) | (any_set((u32v)any_inexact) ? inexact : 0);
}

typedef int (*StandFor)(const float *, const float *, bool, Target, Stand &, i64);
const StandFor stands[] = {stand_for<exact_add>, stand_for<exact_subtract>, stand_for<exact_multiply>,
                           stand_for<exact_divide>, stand_for<exact_sqrt>};

Target target_of(const ExactJob &job) {
    const Rounding &r = job.out.rounding;
    const Format &f = r.format;
    const bool ieee = f.exponent_bits == 8 && f.mantissa_bits == 23 && f.emin == -126 && f.inf_code == 0x7f800000 &&
                      f.nan_code == 0x7fc00000 && f.subnormals;
    if (ieee && r.mode == nearest_even && !r.flush && r.over_pos == f.inf_code && r.inf_pos == f.inf_code &&
        job.out.out == coded32 && !job.out.as_value)
        return same;
#if defined(__FMA__) || defined(__aarch64__)
    const int emax = f.emin + int(f.max_code >> f.mantissa_bits) - 1;
    const bool fits = f.mantissa_bits <= 13 && f.emin >= -126 && emax <= 127 && f.sign_bit && f.subnormals && f.zero;
    const bool stored = job.out.as_value ? job.out.out == real32 : job.out.out <= coded16;
    if (!fits || !stored || r.random_bits > 16 || job.operation == exact_fma) return none;
    bool halves = true;
    for (int i = 0; i < job.operands; ++i) halves &= !job.wide[i] && job.operand[i].element == Element::half;
    const bool to_half = f.mantissa_bits == 10 && f.emin == -14 && r.mode == nearest_even;
    if (halves && (to_half || job.operation == exact_multiply)) return near_enough;
    if (r.mode != stochastic) return to_odd_bits;
    return f.mantissa_bits + r.random_bits <= 23 ? cut_off : both_sides;
#else
    return none;
#endif
}

// `count` elements from `at` on, converted; false where that is for doubles to do.
bool convert_piece(const ExactJob &job, const float *const *operand, Target target, PieceConverter &convert, i64 at,
                   i64 count, int &outcome) {
    Stand stand;
    int found = 0;
    if (target == near_enough)
        nearest_pieces[job.operation](operand[0], operand[1], operand[2], stand.inner, count);
    else
        found = stands[job.operation](operand[0], operand[1], job.down, target, stand, count);
    if (found & unsure) return false;
    const u64 offset = job.out.offset + u64(at);
    char *to = static_cast<char *>(job.out.to) + at * job.item_bytes;
    const bool both = target == both_sides && (found & inexact);
    if (both) convert.keep_words(offset, count);
    if (convert.run(stand.inner, to, offset, count)) outcome |= nan_refused;
    if (!both) return true;
    alignas(64) char other[piece * sizeof(float)];
    convert.run(stand.outer, other, offset, count);
    return __builtin_memcmp(to, other, count * job.item_bytes) == 0;
}

bool any_wide(const ExactJob &job) {
    int any = 0;
    for (int i = 0; i < job.operands; ++i) any |= job.wide[i];
    return any != 0;
}

void nearest_elements(const Operands &operands, Nearest run, float *to, i64 begin, i64 end) {
    const i64 step = all_in_place(operands) ? end - begin : piece;  // nothing is buffered
    Pieces<piece> x;
    for (i64 at = begin; at < end; at += step) {
        const i64 count = end - at < step ? end - at : step;
        x.read(operands, at, count);
        run(x.at[0], x.at[1], x.at[2], to + at, count);
    }
}

int exact_converted(const ExactJob &job, const Operands &operands, Target target, const ConvertJob &from_real,
                    i64 begin, i64 end) {
    PieceConverter convert(from_real);
    Pieces<piece> x;
    int outcome = 0;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        x.read(operands, at, count);
        if (!convert_piece(job, x.at, target, convert, at, count, outcome)) outcome |= exact(job, at, at + count);
    }
    return outcome;
}

}  // namespace

int exact_narrow(const ExactJob &job, i64 begin, i64 end) {
    if (!takes(FastPath::narrow_arithmetic)) return exact(job, begin, end);
    const Target target = target_of(job);
    if (target == none) return exact(job, begin, end);
    ConvertJob from_real = job.out;
    from_real.in = real32;
    from_real.wide = 0;
    float scalar[3];
    Operands operands = job;
    for (int i = 0; i < job.operands; ++i) {
        if (!job.wide[i]) continue;  // a double that is a float
        scalar[i] = float(*reinterpret_cast<const double *>(job.operand[i].data));
        operands.operand[i].data = reinterpret_cast<const char *>(&scalar[i]);
        operands.operand[i].element = Element::real32;
    }
    if (target != same) return exact_converted(job, operands, target, from_real, begin, end);
    nearest_elements(operands, nearest_pieces[job.operation], static_cast<float *>(job.out.to), begin, end);
    return 0;
}

}  // namespace LP_ISA
}  // namespace lowprec
