// Tile kernels for any format and mode, and for other orders of addition inside a group.
#include "product/aligned.h"
#include "product/tile_kernels.h"

namespace lowprec {
inline namespace LP_ISA {

Kernel general_kernel(Path path, int rows, int vectors, bool exact) {
    if (path == Path::any_random) return kernel_of<AnyStep<true>>(rows, vectors, exact);
    return kernel_of<AnyStep<false>>(rows, vectors, exact);
}

namespace {

// The exact sum of `count` <= 5 doubles rounded once to float32: Shewchuk's expansion (Discrete and Computational
// Geometry 18, 1997), whose leading double is then rounded to odd.
float round_sum(const double *terms, int count) {
    double parts[5], plain = terms[0];
    int length = 0;
    for (int t = 0; t < count; ++t) {
        double carry = terms[t];
        if (t) plain += carry;
        int kept = 0;
        for (int i = 0; i < length; ++i) {
            const double sum = carry + parts[i], part = sum - carry;
            const double error = (carry - (sum - part)) + (parts[i] - part);
            if (error != 0.0) parts[kept++] = error;
            carry = sum;
        }
        parts[kept++] = carry;
        length = kept;
    }
    if (plain - plain != 0.0) return float(plain);  // infinities and NaN
    double top = parts[length - 1];
    for (int i = length - 2; i >= 0; --i) {
        const double odd = add_to_odd<double, u64>(top, parts[i]);
        const double sum = top + parts[i];
        const double rest = parts[i] - (sum - top);
        if (rest != 0.0) return float(odd);
        top = sum;
    }
    return top != 0.0 ? float(top) : plain == 0.0 ? float(plain) : 0.0f;
}

// Sums of lanes in which an addition of doubles was not exact, one by one. Products stand as [term][lane].
__attribute__((noinline)) f32v add_exactly(const float *a, const float *b, const Chain &c, int count, f32v partial) {
    for (int lane = 0; lane < lanes32; ++lane) {
        double terms[5] = {partial[lane]};
        for (i64 i = 0; i < count; ++i) terms[1 + i] = double(a[i * c.a_k]) * double(b[i * c.b_k + lane]);
        partial[lane] = round_sum(terms, count + 1);
    }
    return partial;
}

// The partial sums and up to four products, added exactly, rounded once. Where every sum of doubles is exact, as it is
// for numbers of similar size, the last one is the exact sum.
LP_INLINE f32v add_four_exactly(const float *a, const float *b, const Chain &c, int count, f32v partial) {
    Doubles sum = doubles(partial);
    u64v inexact = {};
    for (i64 i = 0; i < count; ++i) {
        const Doubles right = doubles(load<f32v>(b + i * c.b_k));
        const double left = a[i * c.a_k];
        for (int h = 0; h < 2; ++h) {
            const f64v x = sum.part[h], y = right.part[h] * left, s = x + y, part = s - x;
            const f64v error = (x - (s - part)) + (y - part);
            inexact |= bit_cast<u64v>(error);  // also where infinities or NaN meet; -0 is no error
            sum.part[h] = s;
        }
    }
    return __builtin_expect(any_set(inexact + inexact), 0) ? add_exactly(a, b, c, count, partial) : floats(sum);
}

// (p0 + p1) + (p2 + p3), each pair one product rounded and one fused, then added to the partial sums.
LP_INLINE f32v add_four_in_pairs(const float *a, const float *b, const Chain &c, int count, f32v partial) {
    f32v pairs[2];
    for (i64 i = 0; i < count; i += 2) {
        pairs[i / 2] = splat_real(a[i * c.a_k]) * load<f32v>(b + i * c.b_k);
        if (i + 1 < count)
            pairs[i / 2] = fused(splat_real(a[(i + 1) * c.a_k]), load<f32v>(b + (i + 1) * c.b_k), pairs[i / 2]);
    }
    return partial + (count > 2 ? pairs[0] + pairs[1] : pairs[0]);
}

// Up to four products, or, aligned, all of a group, whose sum may be `rounded` further.
template <Adder adder>
LP_INLINE f32v add_some(const float *a, const float *b, const Chain &c, i64 count, f32v partial, bool rounded) {
    if constexpr (adder == Adder::aligned) return add_aligned(a, b, c, count, partial, rounded);
    return adder == Adder::dot4 ? add_four_exactly(a, b, c, int(count), partial)
                                : add_four_in_pairs(a, b, c, int(count), partial);
}

// `rows` chains side by side, because one waits for its additions.
template <Adder adder, int rows>
void adder_chains(const Chain &c, i64 a_row, const Rounders &rounders, const float *a, const float *b, float *to,
                  i64 to_row) {
    f32v sums[rows];
    for (int i = 0; i < rows; ++i) sums[i] = load<f32v>(c.start + i * c.start_row);
    u32v words[2][rows][1] = {};
    const bool random = rounders.active && rounders.mode == stochastic, wide = c.whole_words;
    const Draws<7, rows, 1> draws(c.place);
    bool fresh = true;
    u32 g = c.first_group;
    for (i64 k = 0; k < c.count; ++g) {
        const i64 stop = c.group < c.count - k ? k + c.group : c.count;
        for (; adder != Adder::aligned && k + 4 <= stop; k += 4)
            for (int i = 0; i < rows; ++i)
                sums[i] = add_some<adder>(a + i * a_row + k * c.a_k, b + k * c.b_k, c, 4, sums[i], rounders.active);
        for (int i = 0; k < stop && i < rows; ++i)
            sums[i] = add_some<adder>(a + i * a_row + k * c.a_k, b + k * c.b_k, c, stop - k, sums[i], rounders.active);
        k = stop;
        if (!rounders.active) continue;
        if (random && (fresh || (g & (wide ? 1 : 3)) == 0)) draws.words(wide ? (g >> 1) << 3 : (g >> 2) << 3, words);
        fresh = false;
        alignas(64) float line[rows * lanes32];
        for (int i = 0; i < rows; ++i) store(line + i * lanes32, sums[i]);
        const u32v *drawn = &words[wide ? g & 1 : (g >> 1) & 1][0][0];
        rounders.apply(line, drawn, wide ? 0 : int(g & 1) * 16, rows, rounders);
        for (int i = 0; i < rows; ++i) sums[i] = load<f32v>(line + i * lanes32);
    }
    for (int i = 0; i < rows; ++i) store(to + i * to_row, sums[i]);
}

}  // namespace

void adder_kernel(Adder adder, const Chain &chain, const Rounders &rounders, int rows, int vectors, const float *a,
                  const float *b, float *to) {
    const i64 a_row = chain.a_row, to_row = vectors * lanes32;
    Chain c = chain;
    for (int j = 0; j < vectors; ++j)
        for (int i = 0; i < rows;) {
            const bool four = rows - i >= 4 && adder != Adder::aligned;
            c.place.row = chain.place.row + u32(i);
            c.place.column = chain.place.column + u32(j) * lanes32;
            c.start = chain.start + i * chain.start_row + j * lanes32;
            const auto run = adder == Adder::aligned ? adder_chains<Adder::aligned, 1>
                             : adder == Adder::dot4
                                 ? (four ? adder_chains<Adder::dot4, 4> : adder_chains<Adder::dot4, 1>)
                                 : (four ? adder_chains<Adder::pairwise, 4> : adder_chains<Adder::pairwise, 1>);
            run(c, a_row, rounders, a + i * a_row, b + j * lanes32, to + i * to_row + j * lanes32, to_row);
            i += four ? 4 : 1;
        }
}

}  // namespace LP_ISA
}  // namespace lowprec
