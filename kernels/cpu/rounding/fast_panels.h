// Whole panels of 256 float32 values through the short cuts of round_fast.h.
#ifndef LOWPREC_FAST_PANELS_H
#define LOWPREC_FAST_PANELS_H

#include "lowprec/random.h"
#include "lowprec/round_fast.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr int panel = 256;

// The words of four blocks of random half-words, in the order of the elements (see random.h).
struct PanelWords {
    u32v words[8 * vectors_per_block];
};

// Where the words of a rounding come from.
struct RandomBlocks {
    u64 key;
    NearBlocks near;  // of the first elements, and so of nearly all
    // Those of `kept_panels` panels from a block on are here already.
    const PanelWords *kept;
    u64 first_kept, kept_panels;

    // The words of a panel of them, else null.
    LP_INLINE const PanelWords *kept_words(u64 block) const {
        const u64 ahead = block - first_kept;
        return ahead < 4 * kept_panels && ahead % 4 == 0 ? kept + ahead / 4 : nullptr;
    }

    LP_INLINE void fill(u64 block, PanelWords &to) const {
        if (const PanelWords *words = kept_words(block))
            to = *words;
        else if (__builtin_expect(are_near(near, block, 4), 1))
            block_words<4>(block, near, to.words);
        else
            block_words<4>(block, tag_rounding, key, to.words);
    }
};

LP_INLINE RandomBlocks random_blocks(u64 key, u64 block) {
    return {key, near_blocks(u32((8 * block) >> 32), tag_rounding, key), nullptr, 0, 0};
}

// Rounds a panel from `from` into `to`, elements of 1, 2 or 4 bytes.
typedef void (*FastPanel)(const u32 *from, const PanelWords &random, void *to, const FastRounder &k);

// The panel for a rounding, null where there is no short cut. bytes: of an output element.
FastPanel fast_panel(const FastRounder &k, int mode, bool as_value, int bytes);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
