// Zeros that would not be zero if they were not rounded.
#include "codes/numbers.h"
#include "codes/underflow_job.h"
#include "isa/table.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

LP_INLINE double value_at(const Term &term, i64 offset) {
    if (!term.x.data) return term.number;
    return of_element(term.x.element,
                      [&](auto kind) { return double(one_from<decltype(kind)::element>(term.x.data + offset)); });
}

double ideal_at(const UnderflowJob &job, i64 place) {
    i64 left = 0, right = 0;
    for (int axis = job.axes - 1; axis >= 0; --axis) {
        const i64 index = axis ? place % job.shape[axis] : place;
        if (axis) place /= job.shape[axis];
        left += index * job.left.stride[axis];
        right += index * job.right.stride[axis];
    }
    if (job.ideal == Ideal::quotient) return value_at(job.left, left) / value_at(job.right, right);
    if (job.ideal == Ideal::sum) return value_at(job.left, left) + job.scale * value_at(job.right, right);
    double total = 0;
    for (i64 k = 0; k < job.terms; ++k)
        total += value_at(job.left, left + k * job.left.step) * value_at(job.right, right + k * job.right.step);
    return total;
}

constexpr int block = 512;

// Of `count` elements from `at`, how many are zero.
template <class Code>
int zeros_of(const char *at, int count) {
    int zeros = 0;
    for (int i = 0; i < count; ++i) zeros += Code(load<Code>(at + i * sizeof(Code)) << 1) == 0;
    return zeros;
}

template <class Code>
i64 counted(const UnderflowJob &job) {
    i64 seen = 0, k = 0, under = 0, next = job.count ? chosen_zero(0, job.zeros, job.count) : job.zeros;
    for (i64 begin = 0; begin < job.size && k < job.count; begin += block) {
        const char *from = job.result.data + begin * sizeof(Code);
        const int length = job.size - begin < block ? int(job.size - begin) : block;
        const int zeros = zeros_of<Code>(from, length);
        if (seen + zeros <= next) {
            seen += zeros;
            continue;
        }
        for (int i = 0; i < length && k < job.count; ++i) {
            if (Code(load<Code>(from + i * sizeof(Code)) << 1) != 0) continue;
            if (seen++ != next) continue;
            const double made = ideal_at(job, begin + i);
            under += made != 0 && made - made == 0;
            if (++k < job.count) next = chosen_zero(k, job.zeros, job.count);
        }
    }
    return under;
}

}  // namespace

i64 underflows(const UnderflowJob &job) {
    return job.result.element == Element::real32 ? counted<u32>(job) : counted<u16>(job);
}

}  // namespace LP_ISA
}  // namespace lowprec
