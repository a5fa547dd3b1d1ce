// Loops of exact arithmetic: operands are read as doubles in pieces that stay in the first-level cache, the operation
// runs over them, and the rounding loop converts the piece to the wanted storage.
#include "elementwise/exact_job.h"
#include "isa/table.h"
#include "operands/decode_run.h"
#include "rounding/piece_converter.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 piece = 512;

// The doubles of a piece; `left` tells which results are left to the reference.
struct Piece {
    const double *operand[3];
    alignas(64) double result[piece];
    u8 left[piece];
};

template <int operation, int mode>
bool exact_elements(const ExactJob &job, Piece &at, i64 count) {
    const double *a = at.operand[0], *b = at.operand[1], *c = at.operand[2];
    const int down = job.down;
    // No quotient and no root of doubles is midway between two; their `error` is not the difference that tells a tie.
    constexpr bool no_ties = operation == exact_divide || operation == exact_sqrt;
    constexpr int way = mode == nearest_away && no_ties ? int(nearest_even) : mode;
    double *__restrict to = at.result;
    u8 *__restrict marks = at.left;
    u8 any = 0;
    for (i64 i = 0; i < count; ++i) {
        int left;
        double result = round_exact<way>(exact_result<operation>(a[i], b[i], c[i], down), left);
        to[i] = left ? 0.0 : result;
        marks[i] = u8(left);
        any |= u8(left);
    }
    return any != 0;
}

template <int mode>
bool exact_in_mode(const ExactJob &job, Piece &at, i64 count) {
    switch (job.operation) {
        case exact_add:
            return exact_elements<exact_add, mode>(job, at, count);
        case exact_subtract:
            return exact_elements<exact_subtract, mode>(job, at, count);
        case exact_multiply:
            return exact_elements<exact_multiply, mode>(job, at, count);
        case exact_divide:
            return exact_elements<exact_divide, mode>(job, at, count);
        case exact_sqrt:
            return exact_elements<exact_sqrt, mode>(job, at, count);
        default:
            return exact_elements<exact_fma, mode>(job, at, count);
    }
}

bool exact_piece(const ExactJob &job, Piece &at, i64 count) {
    switch (job.mode) {
        case nearest_even:
            return exact_in_mode<nearest_even>(job, at, count);
        case nearest_away:
            return exact_in_mode<nearest_away>(job, at, count);
        case toward_zero:
            return exact_in_mode<toward_zero>(job, at, count);
        case up:
            return exact_in_mode<up>(job, at, count);
        case down:
            return exact_in_mode<down>(job, at, count);
        case stochastic:
            return exact_in_mode<stochastic>(job, at, count);
        default:
            return exact_in_mode<odd>(job, at, count);
    }
}

// Elements [begin, begin + count) of an operand in the result's order: in place if they lie so, else in `buffer`.
const double *read(const ExactJob &job, int number, i64 begin, i64 count, double *buffer) {
    const Operand &from = job.operand[number];
    if (job.wide[number]) {
        if (job.axes == 1 && from.stride[0] == 8) return reinterpret_cast<const double *>(from.data) + begin;
        for_runs(job, from, begin, count, [&](const char *at, long stride, i64 done, i64 length) {
            for (i64 i = 0; i < length; ++i) buffer[done + i] = *reinterpret_cast<const double *>(at + i * stride);
        });
        return buffer;
    }
    alignas(64) float narrow[piece];
    for_runs(job, from, begin, count, [&](const char *at, long stride, i64 done, i64 length) {
        decode_run(from.element, from.table, at, stride, narrow + done, length);
    });
    for (i64 i = 0; i < count; ++i) buffer[i] = narrow[i];
    return buffer;
}

}  // namespace

int exact(const ExactJob &job, i64 begin, i64 end) {
    alignas(64) double buffer[3][piece];
    Piece here;
    PieceConverter convert(job.out);
    int outcome = 0;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        for (int i = 0; i < 3; ++i)
            here.operand[i] = i < job.operands ? read(job, i, at, count, buffer[i]) : here.operand[0];
        if (exact_piece(job, here, count)) {
            outcome |= some_left;
            if (job.left) __builtin_memcpy(job.left + at, here.left, count);
        }
        char *to = static_cast<char *>(job.out.to) + at * job.item_bytes;
        if (convert.run(here.result, to, job.out.offset + u64(at), count)) outcome |= nan_refused;
    }
    return outcome;
}

}  // namespace LP_ISA
}  // namespace lowprec
