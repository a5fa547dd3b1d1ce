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

// The doubles of a piece: an operation's results with their errors (see exact.h), then rounded by a mode. `left` tells
// which results are left to the reference.
struct Piece {
    const double *operand[3];
    alignas(64) double result[piece], error[piece];
    u8 left[piece];
};

template <int operation>
void exact_elements(Piece &at, bool going_down, i64 count) {
    const double *a = at.operand[0], *b = at.operand[1], *c = at.operand[2];
    const int down = going_down;
    double *__restrict value = at.result, *__restrict error = at.error;
    u8 *__restrict left = at.left;
    for (i64 i = 0; i < count; ++i) {
        const Exact x = exact_result<operation>(a[i], b[i], c[i], down);
        value[i] = x.value;
        error[i] = x.error;
        left[i] = u8(x.left);
    }
}

void exact_elements(int operation, Piece &at, bool down, i64 count) {
    switch (operation) {
        case exact_add:
            return exact_elements<exact_add>(at, down, count);
        case exact_subtract:
            return exact_elements<exact_subtract>(at, down, count);
        case exact_multiply:
            return exact_elements<exact_multiply>(at, down, count);
        case exact_divide:
            return exact_elements<exact_divide>(at, down, count);
        case exact_sqrt:
            return exact_elements<exact_sqrt>(at, down, count);
        default:
            return exact_elements<exact_fma>(at, down, count);
    }
}

// Whether any is left.
template <int mode>
bool round_elements(Piece &at, i64 count) {
    double *__restrict value = at.result, *__restrict error = at.error;
    u8 *__restrict marks = at.left;
    u8 any = 0;
    for (i64 i = 0; i < count; ++i) {
        int left;
        const double result = round_exact<mode>({value[i], error[i], marks[i]}, left);
        value[i] = left ? 0.0 : result;
        marks[i] = u8(left);
        any |= u8(left);
    }
    return any != 0;
}

bool exact_piece(const ExactJob &job, Piece &at, i64 count) {
    exact_elements(job.operation, at, job.down, count);
    // No quotient and no root of doubles is midway between two; their `error` is not the difference that tells a tie.
    const bool no_ties = job.operation == exact_divide || job.operation == exact_sqrt;
#define LP_CASE(m) \
    case m:        \
        return round_elements<m>(at, count);
    switch (job.mode == nearest_away && no_ties ? int(nearest_even) : job.mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
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
