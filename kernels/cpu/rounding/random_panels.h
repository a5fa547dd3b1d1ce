// The random bits of a panel, in the place where the carrier's rounding takes them.
#ifndef LOWPREC_RANDOM_PANELS_H
#define LOWPREC_RANDOM_PANELS_H

#include "isa/widths.h"
#include "lowprec/random.h"

namespace lowprec {
inline namespace LP_ISA {

// Four blocks of 64 half-words. In 64-bit lanes they stand at the top of 32 fraction bits.
template <class E>
void random_half_words(u64 first_block, int tag, u64 key, E *random) {
    constexpr int lift = sizeof(E) == 8 ? 16 : 0;
    constexpr int lanes = Lanes<u32v>::count, vectors = vectors_per_block;
    u32v words[8 * vectors];
    block_words<4>(first_block, tag, key, words);
    for (int pair = 0; pair < 8; ++pair)
        for (int half = 0; half < 2; ++half)
            for (int v = 0; v < vectors; ++v) {
                u32v w = words[pair * vectors + v];
                u32v r = half ? w >> 16 : w & 0xffff;
                store_as(random + ((2 * pair + half) * vectors + v) * lanes, r << lift);
            }
}

// Eight wide blocks of 32 words.
template <class E>
void random_whole_words(u64 first_block, int tag, u64 key, E *random) {
    constexpr int lanes = Lanes<u32v>::count, vectors = vectors_per_block;
    for (int half = 0; half < 2; ++half) {
        u32v words[8 * vectors];
        block_words<4>(first_block + 4 * half, tag, key, words);
        for (int v = 0; v < 8 * vectors; ++v) store_as(random + 128 * half + v * lanes, words[v]);
    }
}

template <class E>
void random_panel(u64 index, int bits, u64 key, E *random) {
    if (bits <= 16) return random_half_words(index >> 6, tag_rounding, key, random);
    random_whole_words(index >> 5, tag_rounding_wide, key, random);
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
