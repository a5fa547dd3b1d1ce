// Functions rounded to few bits, by brackets: a few places of float32 around their quick values, which are known to be
// nearer than that (tests/lowprec/test_quick_functions.py).
//
// No rounding is decreasing, whatever its mode, if the random bits are the same: where both ends of a bracket round to
// one code, so does the float32 between them. Elements whose ends differ are evaluated in full.
#include "elementwise/brackets.h"
#include "elementwise/functions_floats.h"
#include "elementwise/read_piece.h"
#include "rounding/piece_converter.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

struct Bracket {
    f32v low, high;
};

// So many steps of float32 around y, which has the result's sign. Infinities are not taken for granted.
template <u32 steps>
LP_INLINE Bracket around(f32v y) {
    const u32v bits = bit_cast<u32v>(y), magnitude = bits & 0x7fffffffu, sign = bits ^ magnitude;
    const u32v infinity = u32v{} + 0x7f800000u;
    const u32v high = smaller(magnitude + steps, larger(magnitude, infinity));
    const u32v low = larger(magnitude, u32v{} + steps) - steps;  // NaN stays: the machine's own are far from infinity
    return {bit_cast<f32v>(low | sign), bit_cast<f32v>(high | sign)};
}

template <class Quick>
struct around_quick {
    static LP_INLINE Bracket of(f32v x) { return around<Quick::steps>(Quick::near(x)); }
};

// Near the function's zero the error is not relative to the result, but to the two terms that cancel.
struct quick_gelu_gradient {
    static LP_INLINE Bracket of(f32v x) {
        const f32v z = at_most(size_of(x), 15.0f);
        const Tail tail = normal_tail(z);
        const f32v slope = z * 0.398942280f;
        const f32v lower = tail.density * (tail.ratio - slope);
        const f32v y = x < f32v{} ? lower : 1.0f - lower;
        const f32v scale = tail.density * (tail.ratio + slope) + (x < f32v{} ? f32v{} : splat_real(1.0f));
        const f32v error = mul_add(scale, splat_real(0x1p-21f), splat_real(0x1p-147f));
        return {y - error, y + error};
    }
};

// Beyond 2^15 all that is known is that the result is in [-1, 1].
template <class Quick>
struct around_sine {
    static LP_INLINE Bracket of(f32v x) {
        Bracket near = around<Quick::steps>(Quick::near(x));
        const f32v nothing = x - x;  // NaN for infinities and NaN
        const i32v far = size_of(x) > splat_real(32768.0f);
        near.low = far ? nothing - 1.0f : near.low;
        near.high = far ? nothing + 1.0f : near.high;
        near.low = nothing == nothing ? near.low : nothing;
        near.high = nothing == nothing ? near.high : nothing;
        return near;
    }
};

template <class Function>
void brackets(const float *x, float *low, float *high, i64 count) {
    for (i64 i = 0; i < count; i += lanes32) {
        const Bracket b = Function::of(load<f32v>(x + i));
        store(low + i, b.low);
        store(high + i, b.high);
    }
}

constexpr i64 piece = 1024, block = 256;  // elements; a block is converted again together
constexpr int few_bits = 12;

class BracketConverter {
  public:
    BracketConverter(const ElementwiseJob &job, Brackets of, Run run)
        : convert(job.out), brackets(of), shortly(run), bytes(job.item_bytes) {}

    // Rounds the results of x, which has whole vectors; the first takes the random bits of index `offset`.
    bool run(const float *x, char *to, u64 offset, i64 count) {
        brackets(x, low, high, (count + lanes32 - 1) / lanes32 * lanes32);
        convert.keep_words(offset, count);
        const bool refused = convert.run(low, to, offset, count);
        convert.run(high, other, offset, count);
        const i64 number = differing(to, count);
        if (number) mend(x, number);
        for (i64 i = 0; i < number;) {  // whole blocks, of which each is rounded once more
            const i64 first = place[i] / block * block, end = first + block < count ? first + block : count;
            convert.run(low + first, to + first * bytes, offset + u64(first), end - first);
            while (i < number && place[i] < end) ++i;
        }
        return refused;
    }

  private:
    // Finds the elements of which the codes of both ends differ, and how many they are.
    i64 differing(const char *to, i64 count) {
        switch (bytes) {
            case 1:
                return differing_codes<u8>(to, count);
            case 2:
                return differing_codes<u16>(to, count);
            case 4:
                return differing_codes<u32>(to, count);
            default:
                return differing_codes<u64>(to, count);
        }
    }

    template <class Code>
    i64 differing_codes(const char *to, i64 count) {
        constexpr i64 each = LP_VECTOR_BYTES / sizeof(Code);
        i64 number = 0;
        for (i64 i = 0; i < count; i += each) {
            const i64 at = i * i64(sizeof(Code)), end = i + each < count ? i + each : count;
            if (end - i == each && !any_set(load<u64v>(to + at) ^ load<u64v>(other + at))) continue;
            for (i64 j = i; j < end; ++j) {
                place[number] = j;
                number += load<Code>(to + j * sizeof(Code)) != load<Code>(other + j * sizeof(Code));
            }
        }
        return number;
    }

    // Puts the results themselves in the place of their lower ends.
    void mend(const float *x, i64 number) {
        alignas(64) float wanted[piece], result[piece];
        const i64 whole = (number + lanes32 - 1) / lanes32 * lanes32;
        for (i64 i = 0; i < whole; ++i) wanted[i] = i < number ? x[place[i]] : 0.0f;
        shortly(wanted, wanted, wanted, result, whole);
        for (i64 i = 0; i < number; ++i) low[place[i]] = result[i];
    }

    PieceConverter convert;
    const Brackets brackets;
    const Run shortly;
    const i64 bytes;
    alignas(64) float low[piece], high[piece];
    alignas(64) char other[piece * 8];
    i64 place[piece + 1];
};

}  // namespace

Brackets brackets_of(int operation) {
#define LP_BRACKETS(name, way) \
    case number_of_##name:     \
        return brackets<way>;
    switch (operation) {
        LP_BRACKETS(exp, around_quick<quick_exp>)
        LP_BRACKETS(log, around_quick<quick_log>)
        LP_BRACKETS(tanh, around_quick<quick_tanh>)
        LP_BRACKETS(sigmoid, around_quick<quick_sigmoid>)
        LP_BRACKETS(rsqrt, around_quick<quick_rsqrt>)
        LP_BRACKETS(erf, around_quick<quick_erf>)
        LP_BRACKETS(gelu, around_quick<quick_gelu>)
        LP_BRACKETS(gelu_gradient, quick_gelu_gradient)
        LP_BRACKETS(sin, around_sine<quick_sin>)
        LP_BRACKETS(cos, around_sine<quick_cos>)
        default:
            return nullptr;
    }
}

// An overflow must not fall between equal codes.
Brackets brackets_for(const ElementwiseJob &job) {
    const Rounding &r = job.out.rounding;
    const bool ordered = r.inf_pos != r.format.max_code || r.over_pos == r.format.max_code;
    if (job.plain || !ordered || r.format.mantissa_bits > few_bits) return nullptr;
    // In full it costs less than rounding both ends with random bits.
    if (job.operation == number_of_rsqrt && r.mode == stochastic) return nullptr;
    return brackets_of(job.operation);
}

bool elementwise_by_brackets(const ElementwiseJob &job, Brackets brackets, Run shortly, i64 begin, i64 end) {
    BracketConverter converter(job, brackets, shortly);
    alignas(64) float buffer[piece];
    bool refused = false;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        const float *x = read_piece(job, job.operand[0], at, count, buffer);
        if (x != buffer && count % lanes32) x = static_cast<const float *>(__builtin_memcpy(buffer, x, count * 4));
        for (i64 i = count; i % lanes32 && x == buffer; ++i) buffer[i] = 0;
        char *to = static_cast<char *>(job.out.to) + at * job.item_bytes;
        refused |= converter.run(x, to, job.out.offset + u64(at), count);
    }
    return refused;
}

}  // namespace LP_ISA
}  // namespace lowprec
