// Operations on float16 arrays with float16 results, nearest-even: in registers from one to the other.
#ifndef LOWPREC_HALF_RUNS_H
#define LOWPREC_HALF_RUNS_H

#include "isa/lanes.h"
#include "operands/operand_runs.h"
#include "rounding/machine.h"

namespace lowprec {
inline namespace LP_ISA {

typedef void (*HalfRun)(const char *a, const char *b, const char *c, char *to, i64 count);

// Operation::of takes and gives float32 lanes.
template <class Operation>
void run_halves(const char *a, const char *b, const char *c, char *to, i64 count) {
    const auto apply = [](u16v x, u16v y, u16v z) {
        return real_to_half(with_one_nan(Operation::of(half_to_real(x), half_to_real(y), half_to_real(z))));
    };
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32)
        store(to + 2 * i, apply(load<u16v>(a + 2 * i), load<u16v>(b + 2 * i), load<u16v>(c + 2 * i)));
    if (i == count) return;
    const i64 left = count - i;
    const u16v x = load_some<u16v>(a + 2 * i, left), y = load_some<u16v>(b + 2 * i, left);
    store_some(to + 2 * i, apply(x, y, load_some<u16v>(c + 2 * i, left)), left);
}

// Whether every operand is a float16 array in the result's order.
inline bool halves_only(const Operands &job) {
    for (int i = 0; i < job.operands; ++i)
        if (job.axes != 1 || job.operand[i].element != Element::half || job.operand[i].stride[0] != 2) return false;
    return true;
}

// Whether the result, `out` from float32, is the machine's float16 as well.
inline bool halves_only(const Operands &job, const ConvertJob &out) {
    return !out.as_value && machine_way(out) == MachineWay::half && halves_only(job);
}

// Elements [begin, end) of all operands.
inline void run_halves(const Operands &job, HalfRun run, void *to, i64 begin, i64 end) {
    const char *operand[3];
    for (int i = 0; i < 3; ++i) operand[i] = job.operand[i < job.operands ? i : 0].data + 2 * begin;
    run(operand[0], operand[1], operand[2], static_cast<char *>(to) + 2 * begin, end - begin);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
