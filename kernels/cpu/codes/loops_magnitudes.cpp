// Counting what numbers are like: one pass over their bits in float32.
#include "codes/magnitudes_job.h"
#include "codes/numbers.h"
#include "isa/table.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

constexpr int sums = 16, vectors = sums / lanes32;
constexpr u32 magnitude = 0x7fffffff, infinity = 0x7f800000;

struct Counts {
    u32v zeros[vectors] = {}, infinite[vectors] = {}, nan[vectors] = {}, largest[vectors] = {};
    f64v squares[2 * vectors] = {};
};

LP_INLINE f64v squared(f32_pair x) {
    const f64v wide = __builtin_convertvector(x, f64v);
    return wide * wide;
}

// Comparisons are -1 where they hold.
LP_INLINE void take(Counts &c, int v, f32v x) {
    const u32v code = bit_cast<u32v>(x) & magnitude, finite = (u32v)(code < infinity) & code;
    c.zeros[v] -= (u32v)(code == 0u);
    c.infinite[v] -= (u32v)(code == infinity);
    c.nan[v] -= (u32v)(code > infinity);
    c.largest[v] = finite > c.largest[v] ? finite : c.largest[v];
    f32_pair half[2];
    __builtin_memcpy(half, &finite, sizeof half);
    c.squares[2 * v] += squared(half[0]);
    c.squares[2 * v + 1] += squared(half[1]);
}

template <class T, class S>
LP_INLINE S total(const void *parts) {
    T part[sums];
    S all = 0;
    __builtin_memcpy(part, parts, sizeof part);
    for (const T &x : part) all += x;
    return all;
}

template <Element element>
Magnitudes counted(const char *from, i64 count, f32v factor) {
    constexpr int bytes = bytes_each<element>;
    Counts c;
    i64 i = 0;
    for (; i + sums <= count; i += sums)
        for (int v = 0; v < vectors; ++v) take(c, v, lanes_from<element>(from + (i + v * lanes32) * bytes) * factor);
    if (i < count) {  // zeros that are none of the numbers stand behind the last
        char stored[sums * bytes] = {};
        float rest[sums];
        __builtin_memcpy(stored, from + i * bytes, (count - i) * bytes);
        for (int v = 0; v < vectors; ++v)
            store(rest + v * lanes32, lanes_from<element>(stored + v * lanes32 * bytes) * factor);
        for (i64 k = count - i; k < sums; ++k) rest[k] = 0;
        for (int v = 0; v < vectors; ++v) take(c, v, load<f32v>(rest + v * lanes32));
        i += sums;
    }
    u32 largest[sums], most = 0;
    __builtin_memcpy(largest, c.largest, sizeof largest);
    for (u32 x : largest) most = x > most ? x : most;
    const i64 zeros = total<u32, i64>(c.zeros) - (i - count);
    return {zeros, total<u32, i64>(c.infinite), total<u32, i64>(c.nan), total<double, double>(c.squares), most};
}

template <Element element>
void add_exponents(const char *from, float factor, const Sample &sample, i64 *histogram) {
    for (i64 k = 0, at = 0; k < sample.count; ++k) {
        const float x = one_from<element>(from + at * bytes_each<element>) * factor;
        ++histogram[bit_cast<u32>(x) >> 23 & 0xff];
        at += sample.step;
        if (at >= sample.size) at -= sample.size;
    }
}

// Elements of a sample as floats, some at a time: where they lie, or put into `buffer`.
struct Walk {
    const Sample &sample;
    bool all;  // in order

    explicit Walk(const Sample &s) : sample(s), all(s.count == s.size && s.step == 1) {}

    const float *line(const Numbers &x, i64 begin, i64 at, i64 count, float *buffer) const {
        return of_element(x.element, [&](auto kind) -> const float * {
            constexpr Element element = decltype(kind)::element;
            constexpr int bytes = bytes_each<element>;
            if (all) {
                if constexpr (element == Element::real32) {
                    return reinterpret_cast<const float *>(x.data) + begin;
                } else {
                    const char *from = x.data + begin * bytes;
                    i64 i = 0;
                    for (; i + lanes32 <= count; i += lanes32) store(buffer + i, lanes_from<element>(from + i * bytes));
                    for (; i < count; ++i) buffer[i] = one_from<element>(from + i * bytes);
                    return buffer;
                }
            }
            for (i64 i = 0; i < count; ++i) {
                buffer[i] = one_from<element>(x.data + at * bytes);
                at += sample.step;
                if (at >= sample.size) at -= sample.size;
            }
            return buffer;
        });
    }
};

constexpr int line_length = 512;

}  // namespace

Magnitudes magnitudes(const MagnitudesJob &job) {
    return of_element(job.x.element, [&](auto kind) {
        constexpr Element element = decltype(kind)::element;
        const i64 size = job.sample.size, piece = element == Element::real32 ? size : sixteen_at_a_time;
        const f32v factor = splat_real(job.factor);
        add_exponents<element>(job.x.data, job.factor, job.sample, job.histogram);
        Magnitudes all = counted<element>(job.x.data, size < piece ? size : piece, factor);
        for (i64 begin = piece; begin < size; begin += piece) {
            const i64 count = size - begin < piece ? size - begin : piece;
            const Magnitudes some = counted<element>(job.x.data + begin * bytes_each<element>, count, factor);
            const u32 largest = some.largest > all.largest ? some.largest : all.largest;
            all = {all.zeros + some.zeros, all.infinite + some.infinite, all.nan + some.nan, all.squares + some.squares,
                   largest};
        }
        return all;
    });
}

Changes changes(const ChangesJob &job) {
    const Walk walk(job.sample);
    float buffers[4][line_length];
    Changes all = {0, 0};
    i64 at = 0;
    for (i64 begin = 0; begin < job.sample.count; begin += line_length) {
        const i64 left = job.sample.count - begin;
        const int count = left < line_length ? int(left) : line_length;
        const float *direction = walk.line(job.direction, begin, at, count, buffers[0]);
        const float *before = walk.line(job.before, begin, at, count, buffers[1]);
        const float *after = walk.line(job.after, begin, at, count, buffers[2]);
        u32 wanted = 0, lost = 0;
        const float *base = job.base.data ? walk.line(job.base, begin, at, count, buffers[3]) : before;
        for (int i = 0; i < count; ++i) {
            // Not finite where `before` is not.
            const double change = (double(base[i]) - double(before[i])) + job.scale * double(direction[i]);
            const u32 asked = u32(change != 0) & u32(change - change == 0);
            wanted += asked;
            lost += asked & u32(before[i] == after[i]);
        }
        all = {all.wanted + wanted, all.lost + lost};
        at = (at + count * job.sample.step) % job.sample.size;
    }
    return all;
}

}  // namespace LP_ISA
}  // namespace lowprec
