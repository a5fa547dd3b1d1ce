// float32_op: operands are read as float32 in pieces that stay in the first-level cache, the operation runs over them,
// and the rounding loop converts the piece to the wanted storage.
#include "elementwise/brackets.h"
#include "elementwise/elementwise_job.h"
#include "elementwise/functions_doubles.h"
#include "elementwise/functions_pieces.h"
#include "elementwise/operation_runs.h"
#include "elementwise/read_piece.h"
#include "elementwise/vector_runs.h"
#include "isa/fast_paths.h"
#include "isa/table.h"
#include "lowprec/elementwise.h"
#include "rounding/piece_converter.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 piece = 1024;
constexpr i64 most_at_once = i64(1) << 30;  // elements, that are counted in 32 bits

template <class Operation>
void run(const float *a, const float *b, const float *c, float *to, i64 count) {
    run_vectors([](f32v x, f32v y, f32v z) { return with_one_nan(Operation::apply(x, y, z)); }, a, b, c, to, count);
}

// Elements whose results are left open, to be found together.
struct LeftOpen {
    static constexpr i64 most = 8 * lanes32;
    alignas(64) float x[most + lanes32], result[most + lanes32];
    i32 at[most + lanes32];
    i64 number = 0;

    // The lanes `open` of the vector of elements from i on.
    void note(f32v from, u32 open, i64 i) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
        const i32v lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        _mm512_storeu_ps(x + number, _mm512_maskz_compress_ps(__mmask16(open), (__m512)from));
        store(at + number, (i32v)_mm512_maskz_compress_epi32(__mmask16(open), (__m512i)(lane + i32(i))));
        number += __builtin_popcount(open);
#else
        for (; open; open &= open - 1) {
            const int lane = __builtin_ctz(open);
            x[number] = from[lane];
            at[number++] = i32(i) + lane;
        }
#endif
    }

    template <class Run>
    void find(Run run, float *to) {
        const i64 whole = (number + lanes32 - 1) / lanes32 * lanes32;
        for (i64 i = number; i < whole; ++i) x[i] = 1.0f;
        run(x, x, x, result, whole);
        for (i64 i = 0; i < number; ++i) to[at[i]] = result[i];
        number = 0;
    }
};

// A function by the shortest way, and what that leaves open by the others and then in full.
template <class Operation, class Short, class... Longer>
void run_short(const float *a, const float *b, const float *c, float *to, i64 count) {
    constexpr auto longer = [](auto... operands) {
        if constexpr (sizeof...(Longer))
            run_short<Operation, Longer...>(operands...);
        else
            run<Operation>(operands...);
    };
    LeftOpen left;
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32) {
        u32 open;
        const f32v x = load<f32v>(a + i);
        store(to + i, Short::rounded(x, open));
        if (__builtin_expect(open == 0, 1)) continue;
        left.note(x, open, i);
        if (left.number >= LeftOpen::most) left.find(longer, to);
    }
    left.find(longer, to);
    if (i < count) run<Operation>(a + i, b + i, c + i, to + i, count - i);
}

#define LP_RUN(name) run<name##_operation>,
const Run full_runs[] = {LP_OPERATIONS(LP_RUN)};

#define LP_SHORTLY(name, ...) \
    case number_of_##name:    \
        return run_short<name##_operation, __VA_ARGS__>;
#define LP_SHORT(name) LP_SHORTLY(name, by_doubles<short_##name##_function>)

// By pieces, null where an operation has none.
Run piece_run_of(int operation) {
    switch (operation) {
#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64
        LP_SHORTLY(sigmoid, piece_sigmoid_function, by_doubles<short_sigmoid_function>)
        LP_SHORTLY(log, piece_log_function)
        LP_SHORTLY(erf, piece_erf_function, by_doubles<short_erf_function>)
        LP_SHORTLY(gelu, piece_gelu_function, by_doubles<short_gelu_function>)
#endif
        default:
            return nullptr;
    }
}

Run short_run_of(int operation) {
    switch (operation) {
        LP_SHORT(exp)
        LP_SHORT(sigmoid)
        LP_SHORT(erf)
        LP_SHORT(gelu)
        LP_SHORT(tanh)
        LP_SHORT(sin)
        LP_SHORT(cos)
        LP_SHORT(gelu_gradient)
        default:
            return nullptr;
    }
}

// The shortest way.
Run run_of(int operation) {
    const Run by_pieces = takes(FastPath::pieces) ? piece_run_of(operation) : nullptr;
    const Run shortly = takes(FastPath::short_functions) ? short_run_of(operation) : nullptr;
    return by_pieces ? by_pieces : shortly ? shortly : full_runs[operation];
}

void elementwise_plain(const ElementwiseJob &job, i64 begin, i64 end) {
    const Run run_piece = run_of(job.operation);
    const i64 step = all_in_place(job) ? most_at_once : piece;  // nothing is buffered
    Pieces<piece> x;
    for (i64 at = begin; at < end; at += step) {
        const i64 count = end - at < step ? end - at : step;
        x.read(job, at, count);
        run_piece(x.at[0], x.at[1], x.at[2], static_cast<float *>(job.out.to) + at, count);
    }
}

bool elementwise_rounded(const ElementwiseJob &job, i64 begin, i64 end) {
    const Run run_piece = run_of(job.operation);
    PieceConverter convert(job.out);
    Pieces<piece> x;
    alignas(64) float result[piece];
    bool refused = false;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        x.read(job, at, count);
        run_piece(x.at[0], x.at[1], x.at[2], result, count);
        char *to = static_cast<char *>(job.out.to) + at * job.item_bytes;
        refused |= convert.run(result, to, job.out.offset + u64(at), count);
    }
    return refused;
}

}  // namespace

bool elementwise(const ElementwiseJob &job, i64 begin, i64 end) {
    // Pieces cost less than rounding two ends.
    const bool by_pieces = takes(FastPath::pieces) && piece_run_of(job.operation);
    const Brackets brackets = takes(FastPath::brackets) && !by_pieces ? brackets_for(job) : nullptr;
    if (brackets) return elementwise_by_brackets(job, brackets, run_of(job.operation), begin, end);
    if (!job.plain) return elementwise_rounded(job, begin, end);
    elementwise_plain(job, begin, end);
    return false;
}

// Whether a result is a NaN beside NaN, or lies between the ends, of whose sign a zero must be.
static bool within(float low, float high, float result) {
    if (result != result) return low != low && high != high;
    const bool same_sign = !((bit_cast<u32>(low) ^ bit_cast<u32>(high)) >> 31);
    if (result == 0.0f && same_sign && (bit_cast<u32>(low) ^ bit_cast<u32>(result)) >> 31) return false;
    return (low <= result && result <= high) || (high <= result && result <= low);
}

i64 outside_brackets(int operation, i64 begin, i64 end) {
    const Brackets brackets = brackets_of(operation);
    if (!brackets) return end - begin;
    alignas(64) float x[piece], result[piece], quick[piece], low[piece], high[piece];
    i64 misses = 0;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        for (i64 i = 0; i < piece; ++i) x[i] = bit_cast<float>(u32(at + i));
        full_runs[operation](x, x, x, result, piece);
        run_of(operation)(x, x, x, quick, piece);
        brackets(x, low, high, piece);
        for (i64 i = 0; i < count; ++i) {
            const bool same = bit_cast<u32>(quick[i]) == bit_cast<u32>(result[i]);
            misses += !same || !within(low[i], high[i], result[i]);
        }
    }
    return misses;
}

}  // namespace LP_ISA
}  // namespace lowprec
