// Tile kernels for any format and mode, and for other orders of addition inside a group.
#include "kernels.h"

namespace lowprec {
inline namespace LP_ISA {

Kernel general_kernel(Path path, int rows, int vectors, bool along_k, bool exact) {
    if (path == Path::any_random) return kernel_of<AnyStep<true>>(rows, vectors, along_k, exact);
    return kernel_of<AnyStep<false>>(rows, vectors, along_k, exact);
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

float add_four_exactly(const Chain &c, const float *a, const float *b, i64 k, i64 count, float partial) {
    double terms[5] = {partial};
    for (i64 i = 0; i < count; ++i) terms[1 + i] = double(a[(k + i) * c.a_k]) * double(b[(k + i) * c.b_k]);
    return round_sum(terms, int(count) + 1);
}

float fused_one(float a, float b, float c) { return float(add_to_odd<double, u64>(double(c), double(a) * double(b))); }

// (p0 + p1) + (p2 + p3), each pair fused, then added to the partial sum.
float add_four_in_pairs(const Chain &c, const float *a, const float *b, i64 k, i64 count, float partial) {
    float pairs[2] = {0, 0};
    for (i64 i = 0; i < count; i += 2) {
        const float *left = a + (k + i) * c.a_k, *right = b + (k + i) * c.b_k;
        pairs[i / 2] = float(double(left[0]) * double(right[0]));
        if (i + 1 < count) pairs[i / 2] = fused_one(left[c.a_k], right[c.b_k], pairs[i / 2]);
    }
    return partial + (count > 2 ? pairs[0] + pairs[1] : pairs[0]);
}

}  // namespace

void adder_kernel(Adder adder, const Chain &c, const Rounders &rounders, const float *a, const float *b, float *to) {
    f32v tile[1] = {load<f32v>(c.start)};
    u32v words[2][1][1] = {};
    const bool random = rounders.active && rounders.mode == stochastic, wide = c.whole_words;
    u32 g = c.first_group;
    for (i64 k = 0; k < c.count; ++g) {
        const i64 stop = c.group < c.count - k ? k + c.group : c.count;
        for (; k < stop; k += 4) {
            const i64 count = stop - k < 4 ? stop - k : 4;
            for (int lane = 0; lane < lanes32; ++lane)
                tile[0][lane] = adder == Adder::dot4 ? add_four_exactly(c, a, b + lane, k, count, tile[0][lane])
                                                     : add_four_in_pairs(c, a, b + lane, k, count, tile[0][lane]);
        }
        k = stop;
        if (!rounders.active) continue;
        if (random) Draws<7, 1, 1>(c.place).words(wide ? (g >> 1) << 3 : (g >> 2) << 3, words);
        u32v r = wide ? words[g & 1][0][0] : (words[(g >> 1) & 1][0][0] >> int(g & 1) * 16) & 0xffff;
        round_tile(tile, &r, 1, rounders);
    }
    store(to, tile[0]);
}

}  // namespace LP_ISA
}  // namespace lowprec
