// Every mode in both carriers, codes and values.
#include "lowprec/round.h"

namespace lowprec {
template <int mode, class E>
__device__ void round_both(E *x, const Rounding &rounding, E random) {
    Rounder<E> codes = make_rounder<E>(rounding, false), values = make_rounder<E>(rounding, true);
    x[0] = round_bits<mode, false>(x[0], random, codes);
    x[1] = round_bits<mode, true>(x[1], random, values);
}

template <class E>
__device__ void round_all(E *x, const Rounding &rounding, E random) {
    round_both<nearest_even>(x, rounding, random);
    round_both<nearest_away>(x + 2, rounding, random);
    round_both<toward_zero>(x + 4, rounding, random);
    round_both<up>(x + 6, rounding, random);
    round_both<down>(x + 8, rounding, random);
    round_both<odd>(x + 10, rounding, random);
    round_both<stochastic>(x + 12, rounding, random);
}
}  // namespace lowprec

extern "C" __global__ void use(lowprec::u32 *x, lowprec::u64 *y, lowprec::Rounding rounding, lowprec::u32 random) {
    lowprec::round_all<lowprec::u32>(x + 14 * threadIdx.x, rounding, random);
    lowprec::round_all<lowprec::u64>(y + 14 * threadIdx.x, rounding, random);
    y[14 * threadIdx.x] = lowprec::round_integer<lowprec::stochastic>(
        y[0], 0, random, lowprec::make_rounder<lowprec::u64>(rounding, false));
}
