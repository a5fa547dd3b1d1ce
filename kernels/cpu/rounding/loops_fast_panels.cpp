// The panels of fast_panels.h, one for each way, end, mode and size of output.
#include "isa/widths.h"
#include "rounding/fast_panels.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

constexpr int lanes = Lanes<u32v>::count;
constexpr int ahead = 1024;  // elements between a load and the prefetch beside it

template <int mode, int way, int end, bool as_value, class Out>
void run(const u32 *from, const PanelWords &random, void *to, const FastRounder &rounder) {
    const FastRounder k = rounder;
    Out *out = static_cast<Out *>(to);
    for (int pair = 0; pair < 8; ++pair)
        for (int half = 0; half < 2; ++half)
            for (int v = 0; v < vectors_per_block; ++v) {
                const int i = ((2 * pair + half) * vectors_per_block + v) * lanes;
                if (i % 16 == 0) __builtin_prefetch(from + i + ahead);
                u32v r = {};
                if constexpr (mode == stochastic) {
                    const u32v words = random.words[pair * vectors_per_block + v];
                    r = ((half ? words : words << 16) & k.random_mask) >> k.random_shift;
                }
                store_as(out + i, fast_round<mode, way, end, as_value>(load_as<u32v>(from + i), r, k));
            }
}

template <int mode, int way, int end>
FastPanel for_output(bool as_value, int bytes) {
    if (as_value) return bytes == 4 ? run<mode, way, end, true, u32> : nullptr;
    if (bytes == 1) return run<mode, way, end, false, u8>;
    if (bytes == 2) return run<mode, way, end, false, u16>;
    return bytes == 4 ? run<mode, way, end, false, u32> : nullptr;
}

template <int mode>
FastPanel for_way(const FastRounder &k, bool as_value, int bytes) {
    if (k.way == scaled && k.end == symmetric) return for_output<mode, scaled, symmetric>(as_value, bytes);
    if (k.way == scaled) return for_output<mode, scaled, to_nan>(as_value, bytes);
    if (k.end == symmetric) return for_output<mode, aligned, symmetric>(as_value, bytes);
    return for_output<mode, aligned, to_nan>(as_value, bytes);
}

}  // namespace

FastPanel fast_panel(const FastRounder &k, int mode, bool as_value, int bytes) {
    if (!k.serves) return nullptr;
    return mode == stochastic ? for_way<stochastic>(k, as_value, bytes) : for_way<nearest_even>(k, as_value, bytes);
}

}  // namespace LP_ISA
}  // namespace lowprec
