// Element-by-element operations on the GPU: exact arithmetic rounded once, and float32_op with its one conversion.
//
// Compiled once per combination of the names below, which the host defines (backends/cuda/elementwise.py):
//     LP_EXACT     1: the exact real result of doubles, 0: one operation in float32
//     LP_OP an ExactOperation, or the struct of a float32 operation
//     LP_STEP      mode in which an exact result becomes a double: odd where that rounds on as the exact result does
//     LP_READ      lane in which the operands' codes are decoded
//     LP_A B C     Codes<u8 u16>, Numbers<float double>, or Number: one number in place of an array
//     LP_LANE, LP_TO, LP_MODE, LP_VALUES as in convert.cu, of the result's conversion
#include "lowprec/elementwise.h"
#include "lowprec/exact.h"
#include "operands.cuh"
#include "units.cuh"

#ifndef LP_EXACT
#define LP_EXACT 1
#define LP_OP exact_multiply
#define LP_STEP odd
#define LP_READ u64
#define LP_A Numbers<float>
#define LP_B Codes<u16>
#define LP_C Number
#define LP_LANE u64
#define LP_TO Codes<u16>
#define LP_MODE stochastic
#define LP_VALUES 0
#endif

namespace lowprec {

// Three operands and the result: where their elements lie (steps are 0 along broadcast axes), the formats that codes
// are of, and numbers that stand for arrays.
struct Operands {
    i64 size[most_axes], step[4][most_axes];
    const void *data[3];
    double number[3];
    Format format[3];
    int axes, down;  // down: an exact sum of zero is -0
};

inline namespace LP_ISA {

// Byte offsets of element i (logical C order) in the three operands and the result.
LP_INLINE void locate(i64 i, const Operands &in, i64 (&at)[4]) {
    for (int n = 0; n < 4; ++n) at[n] = 0;
    for (int axis = in.axes - 1; axis > 0; --axis) {
        const i64 outer = i / in.size[axis], index = i - outer * in.size[axis];
        for (int n = 0; n < 4; ++n) at[n] += index * in.step[n][axis];
        i = outer;
    }
    for (int n = 0; n < 4; ++n) at[n] += i * in.step[n][0];
}

// The operation's result in the carrier that the conversion reads. `left`: it is one that the reference makes.
#if LP_EXACT
typedef double Real;
LP_INLINE Real result_of(double a, double b, double c, int down, int &left) {
    // No quotient and no root of doubles is midway between two; their error is not the difference that tells a tie.
    constexpr bool ties = LP_OP != exact_divide && LP_OP != exact_sqrt;
    return round_exact<(LP_STEP == nearest_away && !ties ? int(nearest_even) : int(LP_STEP))>(
        exact_result<LP_OP>(a, b, c, down), left);
}
#else
typedef float Real;
LP_INLINE Real result_of(float a, float b, float c, int, int &) { return LP_OP::apply(a, b, c); }
#endif

// state[0] is raised by a NaN into a format that has none; state[1] by an element left undone, which marks say.
template <class E, class To, int mode, bool values>
LP_INLINE void elementwise(const Operands &in, void *to, i64 count, u64 key, u64 offset, const Conversion &job,
                           u32 *state, u8 *marks) {
    typedef Converter<E, Numbers<Real>, To, mode, values> Convert;
    const Convert convert(job);
    const Reader<Real, LP_READ, LP_A> a(in, 0);
    const Reader<Real, LP_READ, LP_B> b(in, 1);
    const Reader<Real, LP_READ, LP_C> c(in, 2);
    u32 refused = 0, any_left = 0;
    for_elements<E, mode>(count, key, offset, job.rounding.random_bits, [&](i64 i, E random) {
        i64 at[4];
        locate(i, in, at);
        int left = 0;
        const Real result = result_of(a(at[0]), b(at[1]), c(at[2]), in.down, left);
        if (marks) marks[i] = u8(left);
        any_left |= u32(left);
        auto *y = reinterpret_cast<typename Convert::Out *>(static_cast<char *>(to) + at[3]);
        *y = convert(left ? Real(0) : result, random, refused);
    });
    if (state && refused) state[0] = 1;
    if (state && any_left) state[1] = 1;
}

}  // namespace LP_ISA
}  // namespace lowprec

extern "C" __global__ void __launch_bounds__(256)
    lowprec_elementwise(lowprec::Operands in, void *to, long long count, unsigned long long key,
                        unsigned long long offset, lowprec::Conversion job, unsigned int *state, unsigned char *marks) {
    using namespace lowprec;
    elementwise<LP_LANE, LP_TO, LP_MODE, LP_VALUES>(in, to, count, key, offset, job, state, marks);
}
