// Sums of columns, every step exact and rounded once: lanes are neighbouring sums, terms come in windows.
#include "sums/column_steps.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

static_assert(column_lanes == term_lanes, "a unit of work fills a window");

bool of_halves(const ColumnJob &job) { return job.x.element == Element::half && !job.y.data; }

// Whether the format is float16, whatever becomes of what lies beyond it, rounded by no more bits than RandomHalf
// counts.
bool in_random_halves(const ColumnJob &job) {
    const Rounding &r = job.rounding;
    const bool half = r.format.mantissa_bits == 10 && r.format.emin == -14 && r.format.max_code == 0x7bff;
    return of_halves(job) && half && is_common(r) && r.format.negative_zero && r.mode == stochastic &&
           r.random_bits <= 28;
}

// Whether sums of floats are exact enough for a format: rounded to odd in 24 bits they decide as the exact ones do, and
// no sum of a float32 and a value of the format overflows. Products are exact there where both factors are float16.
bool in_floats(const ColumnJob &job) {
    const bool exact = !job.y.data || (job.x.element == Element::half && job.y.element == Element::half);
    return exact && has_grid<u32>(job.rounding) && job.rounding.mode == nearest_even &&
           largest_exponent(job.rounding.format) < 100;
}

template <class To, class From>
LP_INLINE To widen(const From *from) {
    if constexpr (sizeof(To) / sizeof(To{}[0]) * sizeof(From) == sizeof(To)) {
        return load<To>(from);
    } else {
        return __builtin_convertvector(load<f32_pair>(from), To);
    }
}

template <class P>
class Columns {
  public:
    explicit Columns(const ColumnJob &j)
        : job(j), policy(j), steps(j.kind == kahan_sum ? 4 : 1), drawn(j.rounding.random_bits, j.key) {}

    void unit(i64 number) {
        const i64 blocks = (job.lane.size + column_lanes - 1) / column_lanes;
        const i64 first = number % blocks * column_lanes;
        const i64 b = number / blocks % job.outer[1].size, a = number / blocks / job.outer[1].size;
        count = job.lane.size - first < column_lanes ? job.lane.size - first : column_lanes;
        x = job.x.data + a * job.outer[0].x + b * job.outer[1].x + first * job.lane.x;
        y = job.y.data + a * job.outer[0].y + b * job.outer[1].y + first * job.lane.y;
        to = static_cast<Term *>(job.to) + a * job.outer[0].to + b * job.outer[1].to + first * job.lane.to;
        index = job.index + u64(a * job.outer[0].index + b * job.outer[1].index + first * job.lane.index);
        for (Real &value : sum) value = 0;
        for (Real &value : correction) value = 0;
        if (count < column_lanes) {  // what unused lanes add is not to be garbage
            __builtin_memset(xs, 0, sizeof xs);
            if (job.y.data) __builtin_memset(ys, 0, sizeof ys);
        }
        for (i64 k = 0; k < job.terms.size; k += term_window) window(k);
        if (job.kind != running_sum)
            for (i64 r = 0; r < count; ++r) to[r * job.lane.to] = Term(finished(sum[r]));
    }

  private:
    typedef typename P::Term Term;
    typedef typename P::Real Real;
    typedef typename P::Vector Vector;
    typedef typename P::Bits Bits;
    static constexpr int lanes = sizeof(Vector) / sizeof(Real);
    static constexpr int abreast = LP_VECTOR_BYTES == 64 && sizeof(Term) == 4 ? 4 : 2;  // vectors side by side
    typedef Term Window[term_window][term_lanes];

    // Rounding leaves one NaN.
    template <class T>
    static LP_INLINE T finished(T sum) {
        if constexpr (P::rounds) return sum;
        return with_one_nan(sum);
    }

    void window(i64 k) {
        const i64 terms = job.terms.size - k < term_window ? job.terms.size - k : term_window;
        fill(job.x, x + k * job.terms.x, job.terms.x, job.lane.x, terms, xs);
        if (job.y.data) fill(job.y, y + k * job.terms.y, job.terms.y, job.lane.y, terms, ys);
        if constexpr (P::random) fill_words(k, terms);
        i64 j = 0;
        for (; j + lanes < count; j += abreast * lanes) lanes_of_window<abreast>(j, k, terms);
        if (j < count) lanes_of_window<1>(j, k, terms);
        if (job.kind == running_sum) store_runs(k, terms);
    }
    template <int vectors>
    void lanes_of_window(i64 j, i64 k, i64 terms) {
        if (job.kind == kahan_sum) return kahan<vectors>(j, terms);
        if constexpr (P::multiplies)
            if (job.y.data) return add_terms<vectors, true>(j, terms, 0);
        add_terms<vectors, false>(j, terms, k == 0 && job.kind == pair_sum);
    }

    void fill(const Operand &from, const char *at, long stride, long lane, i64 terms, Window &to_fill) const {
        if constexpr (sizeof(Term) == 4) {
            if (terms >= 8 && (count == 1 || __builtin_labs(stride) < __builtin_labs(lane)))
                return turn_terms(from, at, stride, lane, count, terms, to_fill);
            for (i64 t = 0; t < terms; ++t) {
                // Lines far apart: what no hardware foresees is fetched one window ahead.
                if (stride >= 1024 && lane <= 4)
                    for (i64 byte = 0; byte < count * lane; byte += 64)
                        __builtin_prefetch(at + (t + term_window) * stride + byte, 0, 2);
                decode_run(from.element, from.table, at + t * stride, lane, to_fill[t], count);
            }
        } else {
            for (i64 t = 0; t < terms; ++t)
                for (i64 r = 0; r < count; ++r) to_fill[t][r] = load<double>(at + t * stride + r * lane);
        }
    }

    // Rows of bits lie along the axis on which neighbours' indices are closer; this is the terms' only where fewer
    // than 8 sums lie between them (see `sum_runs`), so that a row needs few blocks. Pairs have one index for both.
    void fill_words(i64 k, i64 terms) {
        const i64 lane = job.lane.index * steps, step = job.terms.index * steps;
        const u64 first = (index + u64(k * job.terms.index)) * u64(steps);
        if (step == 0)
            drawn.draw({first, 1, count, 0, lane}, steps, words[0] + 1, false);
        else if (lane <= step)
            drawn.draw({first, terms, count, step, lane}, steps, words[0], false);
        else
            drawn.draw({first, count, terms, lane, step}, steps, words[0], true);
    }
    LP_INLINE Bits words_at(int s, i64 t, i64 j) const {
        typedef u32 half __attribute__((vector_size(LP_VECTOR_BYTES / 2)));
        if constexpr (!P::random)
            return Bits{};
        else if constexpr (sizeof(Real) == 4)
            return load<u32v>(&words[s][t][j]);
        else
            return __builtin_convertvector(load<half>(&words[s][t][j]), u64v);
    }

    template <int vectors, bool factors>
    LP_INLINE void add_terms(i64 j, i64 terms, i64 t) {
        Vector s[vectors];
        for (int v = 0; v < vectors; ++v) s[v] = load<Vector>(sum + j + v * lanes);
        if (t)
            for (int v = 0; v < vectors; ++v) s[v] = widen<Vector>(xs[0] + j + v * lanes);
        const bool running = job.kind == running_sum;
        for (; t < terms; ++t)
            for (int v = 0; v < vectors; ++v) {
                const i64 lane = j + v * lanes;
                const Vector term = widen<Vector>(xs[t] + lane);
                if constexpr (factors)
                    s[v] = policy.multiply_add(term, widen<Vector>(ys[t] + lane), s[v], words_at(0, t, lane));
                else
                    s[v] = policy.add(s[v], term, words_at(0, t, lane));
                if (running) store(runs[t] + lane, finished(s[v]));
            }
        for (int v = 0; v < vectors; ++v) store(sum + j + v * lanes, s[v]);
    }

    // Kahan's sum: the correction takes out of the next term what the last addition put in too much.
    template <int vectors>
    LP_INLINE void kahan(i64 j, i64 terms) {
        Vector s[vectors], c[vectors];
        for (int v = 0; v < vectors; ++v) {
            s[v] = load<Vector>(sum + j + v * lanes);
            c[v] = load<Vector>(correction + j + v * lanes);
        }
        for (i64 t = 0; t < terms; ++t)
            for (int v = 0; v < vectors; ++v) {
                const i64 lane = j + v * lanes;
                const Vector term = policy.add(widen<Vector>(xs[t] + lane), -c[v], words_at(0, t, lane));
                const Vector next = policy.add(s[v], term, words_at(1, t, lane));
                const Vector gained = policy.add(next, -s[v], words_at(2, t, lane));
                c[v] = policy.add(gained, -term, words_at(3, t, lane));
                s[v] = next;
            }
        for (int v = 0; v < vectors; ++v) {
            store(sum + j + v * lanes, s[v]);
            store(correction + j + v * lanes, c[v]);
        }
    }

    void store_runs(i64 k, i64 terms) {
        Term *at = to + k * job.terms.to;
        if (job.lane.to == 1) {
            for (i64 t = 0; t < terms; ++t)
                for (i64 r = 0; r < count; ++r) at[t * job.terms.to + r] = Term(runs[t][r]);
        } else {
            for (i64 r = 0; r < count; ++r)
                for (i64 t = 0; t < terms; ++t) at[r * job.lane.to + t * job.terms.to] = Term(runs[t][r]);
        }
    }

    const ColumnJob &job;
    const P policy;
    const int steps;  // random words of an element
    i64 count = 0;
    u64 index = 0;
    const char *x = nullptr, *y = nullptr;
    Term *to = nullptr;
    alignas(64) Real sum[term_lanes], correction[term_lanes];
    alignas(64) Window xs, ys;
    alignas(64) Real runs[term_window][term_lanes];
    alignas(64) u32 words[P::random ? 4 : 1][term_window][term_lanes];
    typename P::Words drawn;
};

template <class P>
void run(const ColumnJob &job, i64 begin, i64 end) {
    Columns<P> sums(job);
    for (i64 unit = begin; unit < end; ++unit) sums.unit(unit);
}

template <class T>
void in_mode(const ColumnJob &job, i64 begin, i64 end) {
    job.rounding.mode == stochastic ? run<Rounded<T, true>>(job, begin, end) : run<Rounded<T, false>>(job, begin, end);
}

}  // namespace

void columns(const ColumnJob &job, i64 begin, i64 end) {
    if (job.ieee)
        job.wide ? run<IeeeDouble>(job, begin, end) : run<IeeeFloat>(job, begin, end);
    else if (job.wide)
        in_mode<double>(job, begin, end);
#if defined(__F16C__)
    else if (of_halves(job) && path_of({job.rounding, 1, 0}) == Path::half_nearest)
        run<IeeeHalf>(job, begin, end);
#endif
    else if (in_random_halves(job))
        run<RandomHalf>(job, begin, end);
    else if (in_floats(job))
        run<OnGrid<u32v, nearest_even>>(job, begin, end);
    else if (has_grid<u64>(job.rounding))
        job.rounding.mode == stochastic ? run<OnGrid<u64v, stochastic>>(job, begin, end)
                                        : run<OnGrid<u64v, nearest_even>>(job, begin, end);
    else
        in_mode<float>(job, begin, end);
}

}  // namespace LP_ISA
}  // namespace lowprec
