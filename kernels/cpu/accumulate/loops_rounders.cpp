// The roundings of sums that are no register tiles, and of tiles that no step covers.
#include "accumulate/steps_fast.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

// Any format of at most 13 mantissa bits and any mode, through round.h in 32-bit lanes.
template <int mode>
LP_INLINE f32v round_lane(f32v x, u32v random, const Rounder<u32> &k) {
    return bit_cast<f32v>(round_bits<mode, true>(bit_cast<u32v>(x), random, k));
}

f32v round_narrow(f32v x, u32v random, int mode, const Rounder<u32> &k) {
#define LP_CASE(m) \
    case m:        \
        return round_lane<m>(x, random, k);
    switch (mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
}

template <int mode>
f32v round_wide_mode(f32v x, u32v random, int lift, const Rounder<u64> &k) {
    for (int i = 0; i < lanes32; ++i) {
        const u64 bits = round_bits<mode, true>(bit_cast<u64>(double(x[i])), u64(random[i]) << lift, k);
        x[i] = float(bit_cast<double>(bits));
    }
    return x;
}

// The same in 64-bit lanes: more mantissa bits, or more than 16 random bits.
f32v round_wide(f32v x, u32v random, int mode, int lift, const Rounder<u64> &k) {
#define LP_CASE(m) \
    case m:        \
        return round_wide_mode<m>(x, random, lift, k);
    switch (mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
}

LP_INLINE f32v rounded(f32v x, u32v random, const Rounders &k) {
    if (k.is_wide) return round_wide(x, random, k.mode, k.whole_words() ? 0 : 16, k.wide);
    return round_narrow(x, random, k.mode, k.narrow);
}

// The roundings of tiles over loose vectors.
template <class Step, int count>
LP_INLINE void round_few(const Step &step, float *values, const u32v *words, int shift) {
    f32v tile[count][1];
    u32v drawn[count][1];
    for (int i = 0; i < count; ++i) {
        tile[i][0] = load<f32v>(values + i * lanes32);
        drawn[i][0] = Step::random ? words[i] : u32v{};
    }
    step.round(tile, drawn, shift);
    for (int i = 0; i < count; ++i) store(values + i * lanes32, tile[i][0]);
}

template <class Step>
void round_vectors(float *values, const u32v *words, int shift, i64 count, const Rounders &rounders) {
    const Step step(rounders);
    i64 i = 0;
    for (; i + 4 <= count; i += 4)
        round_few<Step, 4>(step, values + i * lanes32, Step::random ? words + i : nullptr, shift);
    for (; i < count; ++i) round_few<Step, 1>(step, values + i * lanes32, Step::random ? words + i : nullptr, shift);
}

decltype(Rounders::apply) round_vectors_of(const StepRounding &step) {
    switch (path_of(step)) {
        case Path::none:
            return round_vectors<NoStep>;
#if defined(__F16C__)
        case Path::half_nearest:
            return round_vectors<HalfNearest<false>>;
        case Path::half_checked:
            return round_vectors<HalfNearest<true>>;
#endif
        case Path::grid_nearest:
            return round_vectors<GridNearest>;
        case Path::grid_stochastic:
            return round_vectors<GridStochastic>;
        case Path::aligned_nearest:
            return round_vectors<AlignedStep<false>>;
        case Path::aligned_stochastic:
            return round_vectors<AlignedStep<true>>;
        case Path::any_random:
            return round_vectors<AnyStep<true>>;
        default:
            return round_vectors<AnyStep<false>>;
    }
}

}  // namespace

Rounders::Rounders(const StepRounding &step)
    : mode(step.rounding.mode),
      is_wide(step.wide),
      random_bits(step.rounding.random_bits),
      active(step.active),
      apply(round_vectors_of(step)) {
    if (is_wide)
        wide = make_rounder<u64>(step.rounding, true);
    else if (active)
        narrow = make_rounder<u32>(step.rounding, true);
}

void round_tile(f32v *tile, const u32v *words, i64 vectors, const Rounders &k) {
    for (i64 i = 0; i < vectors; ++i) tile[i] = rounded(tile[i], words ? words[i] : u32v{}, k);
}

}  // namespace LP_ISA
}  // namespace lowprec
