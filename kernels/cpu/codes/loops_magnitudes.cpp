// Counting what float32 numbers are like: one pass over their bits.
#include "codes/magnitudes_job.h"
#include "isa/lanes.h"
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
LP_INLINE void take(Counts &c, int v, u32v bits) {
    const u32v code = bits & magnitude, finite = (u32v)(code < infinity) & code;
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

}  // namespace

Magnitudes magnitudes(const u32 *bits, i64 count) {
    Counts c;
    i64 i = 0;
    for (; i + sums <= count; i += sums)
        for (int v = 0; v < vectors; ++v) take(c, v, load<u32v>(bits + i + v * lanes32));
    u32 rest[sums] = {};  // zeros that are none of the numbers stand behind the last
    __builtin_memcpy(rest, bits + i, (count - i) * sizeof *bits);
    for (int v = 0; v < vectors; ++v) take(c, v, load<u32v>(rest + v * lanes32));
    u32 largest[sums], most = 0;
    __builtin_memcpy(largest, c.largest, sizeof largest);
    for (u32 x : largest) most = x > most ? x : most;
    const i64 zeros = total<u32, i64>(c.zeros) - (sums - (count - i));
    return {zeros, total<u32, i64>(c.infinite), total<u32, i64>(c.nan), total<double, double>(c.squares), most};
}

}  // namespace LP_ISA
}  // namespace lowprec
