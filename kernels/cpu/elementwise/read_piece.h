// Pieces of operands as contiguous floats.
#ifndef LOWPREC_READ_PIECE_H
#define LOWPREC_READ_PIECE_H

#include "operands/decode_run.h"
#include "operands/operand_runs.h"

namespace lowprec {
inline namespace LP_ISA {

// Whether an operand's elements lie as floats in the result's order.
inline bool in_place(const Operands &job, const Operand &from) {
    const bool aligned = reinterpret_cast<u64>(from.data) % sizeof(float) == 0;
    return job.axes == 1 && from.element == Element::real32 && from.stride[0] == 4 && aligned;
}

inline bool all_in_place(const Operands &job) {
    for (int i = 0; i < job.operands; ++i)
        if (!in_place(job, job.operand[i])) return false;
    return true;
}

// Elements [begin, begin + count) of an operand in the result's order: in place if they lie so, else in `buffer`.
inline const float *read_piece(const Operands &job, const Operand &from, i64 begin, i64 count, float *buffer) {
    if (in_place(job, from)) return reinterpret_cast<const float *>(from.data + begin * 4);
    for_runs(job, from, begin, count, [&](const char *at, long stride, i64 done, i64 length) {
        decode_run(from.element, from.table, at, stride, buffer + done, length);
    });
    return buffer;
}

// The operands of pieces of up to `size` elements: in place, or copied here.
template <i64 size>
struct Pieces {
    const float *at[3];
    alignas(64) float buffer[3][size];

    void read(const Operands &job, i64 begin, i64 count) {
        for (int i = 0; i < 3; ++i)
            at[i] = i < job.operands ? read_piece(job, job.operand[i], begin, count, buffer[i]) : at[0];
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
