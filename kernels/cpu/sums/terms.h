// Terms of sums, added line by line: line k holds term k of neighbouring sums, one per lane.
//
// Every source here has `add(sums, k, stop)`: the terms of lines k, k + 1, ... stop - 1 are added in that order, and
// `Each` rounds every sum (by default it does not). What
// the lanes are (columns or rows), and how their elements lie in memory, decides which source reads them fastest.
#ifndef LOWPREC_TERMS_H
#define LOWPREC_TERMS_H

#include <utility>

#include "operands/decode_run.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr i64 term_lanes = 64, term_window = 64;  // sums side by side and terms at a time where lines are turned

struct AsItIs {
    static LP_INLINE f32v each(f32v x) { return x; }
};

// Elements that lie one after the other along a line, read where they are.
template <Element element>
struct DirectLines {
    const char *from;
    long stride;       // bytes between lines
    const i64 *order;  // which line is the k-th; null: line k
    i64 count;         // lanes

    static constexpr i64 item = element == Element::real32 ? 4 : 2;
    typedef u16v Codes;

    const char *line(i64 k) const { return from + (order ? order[k] : k) * stride; }
    static LP_INLINE f32v values(const char *at) {
        if constexpr (element == Element::real32) return load<f32v>(at);
        if constexpr (element == Element::half) return half_to_real(load<Codes>(at));
        return bfloat_to_real(load<Codes>(at));
    }
    static LP_INLINE f32v some_values(const char *at, i64 n) {
        if constexpr (element == Element::real32) return load_some<f32v>(at, n);
        if constexpr (element == Element::half) return half_to_real(load_some<Codes>(at, n));
        return bfloat_to_real(load_some<Codes>(at, n));
    }
    template <class Each, int lines>
    LP_INLINE void add_lines(float *sums, i64 k) const {
        const char *at[lines];
        for (int l = 0; l < lines; ++l) at[l] = line(k + l);
        i64 i = 0;
        for (; i + lanes32 <= count; i += lanes32) {
            f32v sum = load<f32v>(sums + i);
            for (int l = 0; l < lines; ++l) sum = Each::each(sum + values(at[l] + i * item));
            store(sums + i, sum);
        }
        if (i == count) return;
        f32v sum = load<f32v>(sums + i);
        for (int l = 0; l < lines; ++l) sum = Each::each(sum + some_values(at[l] + i * item, count - i));
        store(sums + i, sum);
    }
    template <class Each = AsItIs>
    void add(float *sums, i64 k, i64 stop) const {
        for (; k + 4 <= stop; k += 4) add_lines<Each, 4>(sums, k);
        for (; k < stop; ++k) add_lines<Each, 1>(sums, k);
    }
};

// Any other elements: each line is decoded first.
struct DecodedLines {
    const Operand &x;
    const char *from;
    long stride, lane;  // bytes between lines and between lanes
    const i64 *order;
    i64 count;
    float *line;  // room for a line, in whole vectors

    template <class Each = AsItIs>
    void add(float *sums, i64 k, i64 stop) const {
        for (; k < stop; ++k) {
            decode_run(x.element, x.table, from + (order ? order[k] : k) * stride, lane, line, count);
            for (i64 i = 0; i < count; i += lanes32)
                store(sums + i, Each::each(load<f32v>(sums + i) + load<f32v>(line + i)));
        }
    }
};

template <int step, int... lane>
LP_INLINE void exchange_lanes(f32v &a, f32v &b, std::integer_sequence<int, lane...>) {
    const f32v first = a, second = b;
    a = __builtin_shufflevector(first, second, (lane & step ? lanes32 + lane - step : lane)...);
    b = __builtin_shufflevector(first, second, (lane & step ? lanes32 + lane : lane + step)...);
}

template <int step>
LP_INLINE void turn(f32v (&rows)[lanes32]) {
    for (int i = 0; i < lanes32; ++i)
        if (!(i & step)) exchange_lanes<step>(rows[i], rows[i + step], std::make_integer_sequence<int, lanes32>());
    if constexpr (2 * step < lanes32) turn<2 * step>(rows);
}

// `terms` elements of each of `count` lanes, decoded and turned: turned[term][lane]. Whole vectors of lanes are
// written.
inline void turn_terms(const Operand &x, const char *from, long stride, long lane, i64 count, i64 terms,
                       float (*turned)[term_lanes]) {
    alignas(64) float lines[lanes32][term_window];
    if (terms < term_window) __builtin_memset(lines, 0, sizeof lines);
    // Rows far apart: what no hardware foresees is fetched one window ahead.
    const bool far = lane >= 1024 && stride > 0 && stride <= 4;
    for (i64 j = 0; j < count; j += lanes32) {
        const i64 here = count - j < lanes32 ? count - j : lanes32;
        for (i64 r = 0; r < here; ++r) {
            const char *at = from + (j + r) * lane;
            if (far)
                for (i64 byte = 0; byte < term_window * stride; byte += 64)
                    __builtin_prefetch(at + term_window * stride + byte);
            decode_run(x.element, x.table, at, stride, lines[r], terms);
        }
        if (here <= 2) {
            for (i64 t = 0; t < terms; ++t) {
                f32v line = {};
                for (i64 r = 0; r < here; ++r) line[r] = lines[r][t];
                store(&turned[t][j], line);
            }
            continue;
        }
        for (i64 t = 0; t < terms; t += lanes32) {
            f32v block[lanes32];
            for (int r = 0; r < lanes32; ++r) block[r] = r < here ? load<f32v>(&lines[r][t]) : f32v{};
            turn<1>(block);
            for (int i = 0; i < lanes32; ++i) store(&turned[t + i][j], block[i]);
        }
    }
}

// Terms that lie one after the other, lanes far apart: windows of terms are turned.
struct TurnedLines {
    const Operand &x;
    const char *from;
    long stride, lane;  // bytes between terms of a lane and between lanes
    i64 count, end;     // lanes (up to term_lanes); terms there are
    float (*turned)[term_lanes];
    mutable i64 first = 0, last = 0;  // terms held in `turned`

    void fill(i64 k) const {
        first = k;
        last = end - k < term_window ? end : k + term_window;
        turn_terms(x, from + k * stride, stride, lane, count, last - k, turned);
    }
    template <class Each, int vectors>
    LP_INLINE void add_window(float *sums, i64 j, i64 k, i64 stop) const {
        f32v sum[vectors];
        for (int v = 0; v < vectors; ++v) sum[v] = load<f32v>(sums + j + v * lanes32);
        for (; k < stop; ++k)
            for (int v = 0; v < vectors; ++v)
                sum[v] = Each::each(sum[v] + load<f32v>(&turned[k - first][j + v * lanes32]));
        for (int v = 0; v < vectors; ++v) store(sums + j + v * lanes32, sum[v]);
    }
    template <class Each = AsItIs>
    void add(float *sums, i64 k, i64 stop) const {
        while (k < stop) {
            if (k < first || k >= last) fill(k);
            const i64 here = stop < last ? stop : last;
            i64 j = 0;
            for (; j + 4 * lanes32 <= count; j += 4 * lanes32) add_window<Each, 4>(sums, j, k, here);
            for (; j < count; j += lanes32) add_window<Each, 1>(sums, j, k, here);
            k = here;
        }
    }
};

// One sum: nothing runs beside it, so the latency of an addition bounds it.
struct SingleLine {
    const Operand &x;
    const char *from;
    long stride;  // bytes between terms
    i64 end;
    float *window;  // term_window floats
    mutable i64 first = 0, last = 0;

    template <class Each = AsItIs>
    void add(float *sums, i64 k, i64 stop) const {
        float sum = load<f32v>(sums)[0];
        while (k < stop) {
            if (k < first || k >= last) {
                first = k;
                last = end - k < term_window ? end : k + term_window;
                decode_run(x.element, x.table, from + k * stride, stride, window, last - k);
            }
            const i64 here = stop < last ? stop : last;
            for (; k < here; ++k) sum = Each::each(f32v{sum + window[k - first]})[0];
        }
        f32v line = {};
        line[0] = sum;
        store(sums, line);  // a whole vector, as roundings load it: narrower stores are not forwarded
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
