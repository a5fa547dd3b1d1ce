// float32_op: operands are read as float32 in pieces that stay in the first-level cache, the operation runs over them,
// and the rounding loop converts the piece to the wanted storage.
#include "elementwise/elementwise_job.h"
#include "isa/table.h"
#include "lowprec/elementwise.h"
#include "operands/decode_run.h"

namespace lowprec {
inline namespace LP_ISA {

extern const RoundingTable rounding_table;

namespace {

constexpr i64 piece = 1024;

template <class Operation>
void run(const float *a, const float *b, const float *c, float *to, i64 count) {
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32)
        store(to + i, with_one_nan(Operation::apply(load<f32v>(a + i), load<f32v>(b + i), load<f32v>(c + i))));
    for (; i < count; ++i) to[i] = with_one_nan(Operation::apply(a[i], b[i], c[i]));
}

typedef void (*Run)(const float *, const float *, const float *, float *, i64);
#define LP_RUN(name) run<name##_operation>,
const Run runs[] = {LP_OPERATIONS(LP_RUN)};

// Elements [begin, begin + count) of an operand in the result's order: in place if they lie so, else in `buffer`.
const float *read(const ElementwiseJob &job, const Operand &from, i64 begin, i64 count, float *buffer) {
    const bool aligned = reinterpret_cast<u64>(from.data) % sizeof(float) == 0;
    if (job.axes == 1 && from.element == Element::real32 && from.stride[0] == 4 && aligned)
        return reinterpret_cast<const float *>(from.data + begin * 4);
    for_runs(job, from, begin, count, [&](const char *at, long stride, i64 done, i64 length) {
        decode_run(from.element, from.table, at, stride, buffer + done, length);
    });
    return buffer;
}

#if defined(__F16C__)
// Float32 to IEEE float16 by the conversion instruction.
LP_INLINE u16v to_half(f32v x, bool saturate) {
    if (saturate) {
        x = x > splat_real(65504.0f) ? splat_real(65504.0f) : x;
        x = x < splat_real(-65504.0f) ? splat_real(-65504.0f) : x;
    }
#if LP_VECTOR_BYTES == 64
    return (u16v)_mm512_maskz_cvtps_ph((__mmask16)-1, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    return (u16v)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#endif
}

// `from` has room for whole vectors.
void convert_to_half(const float *from, char *to, i64 count, bool saturate) {
    i64 i = 0;
    for (; i + lanes32 <= count; i += lanes32) store(to + 2 * i, to_half(load<f32v>(from + i), saturate));
    if (i == count) return;
    const u16v rest = to_half(load<f32v>(from + i), saturate);
    __builtin_memcpy(to + 2 * i, &rest, (count - i) * 2);
}
#endif

}  // namespace

bool elementwise(const ElementwiseJob &job, i64 begin, i64 end) {
    alignas(64) float buffer[3][piece], result[piece];
    bool refused = false;
    for (i64 at = begin; at < end; at += piece) {
        const i64 count = end - at < piece ? end - at : piece;
        const float *operand[3];
        for (int i = 0; i < 3; ++i)
            operand[i] = i < job.operands ? read(job, job.operand[i], at, count, buffer[i]) : operand[0];
        char *to = static_cast<char *>(job.out.to) + at * job.item_bytes;
        float *values = job.plain ? reinterpret_cast<float *>(to) : result;
        runs[job.operation](operand[0], operand[1], operand[2], values, count);
        if (job.plain) continue;
#if defined(__F16C__)
        if (job.half) {
            convert_to_half(result, to, count, job.half == 2);
            continue;
        }
#endif
        ConvertJob convert = job.out;
        convert.offset += u64(at);
        convert.from = result;
        convert.to = to;
        refused |= rounding_table.convert(convert, 0, count);
    }
    return refused;
}

}  // namespace LP_ISA
}  // namespace lowprec
