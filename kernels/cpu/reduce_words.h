// Random words of neighbouring sums, whether these are columns of a row or rows of a column (the map of
// lowprec.matmul).
#ifndef LOWPREC_REDUCE_WORDS_H
#define LOWPREC_REDUCE_WORDS_H

#include "steps.h"

namespace lowprec {
inline namespace LP_ISA {

// Words for the numbers (of groups, or of intermediate results) that share the counters of c3: word[pair][vector].
template <i64 most>
struct ReduceWords {
    u32v word[2][most];

    template <int rounds>
    void draw(const Place &place, u32 c3, i64 vectors, bool lanes_are_rows) {
        i64 j = 0;
        if (lanes_are_rows)
            for (; j < vectors; ++j) rows<rounds>(place, c3, j);
        for (; j + 4 <= vectors; j += 4) columns<rounds, 4>(place, c3, j);
        for (; j < vectors; ++j) columns<rounds, 1>(place, c3, j);
    }

  private:
    template <int rounds, int count>
    LP_INLINE void columns(const Place &place, u32 c3, i64 j) {
        Counters c[count];
        for (int v = 0; v < count; ++v) {
            const u32 column = place.column + u32(j + v) * lanes32;
            c[v].c0 = u64v{} + place.head;
            c[v].c1 = u64v{} + place.row;
            c[v].c2 = u64v{} + (column >> 4);
            c[v].c3 = lane_numbers(0) + (c3 | ((column & 15) >> 1));
        }
        philox<rounds>(c, place.key);
        for (int v = 0; v < count; ++v) {
            word[0][j + v] = pair(c[v].c0, c[v].c1);
            word[1][j + v] = pair(c[v].c2, c[v].c3);
        }
    }
    template <int rounds>
    LP_INLINE void rows(const Place &place, u32 c3, i64 j) {
        Counters c[2];
        for (int half = 0; half < 2; ++half) {
            c[half].c0 = u64v{} + place.head;
            c[half].c1 = (lane_numbers(half * lanes64) + (place.row + u32(j) * lanes32)) & 0xffffffffull;
            c[half].c2 = u64v{} + (place.column >> 4);
            c[half].c3 = u64v{} + (c3 | ((place.column & 15) >> 1));
        }
        philox<rounds>(c, place.key);
        const bool odd = place.column & 1;
        word[0][j] = odd ? joined(c[0].c1, c[1].c1) : joined(c[0].c0, c[1].c0);
        word[1][j] = odd ? joined(c[0].c3, c[1].c3) : joined(c[0].c2, c[1].c2);
    }
    static LP_INLINE u32v joined(u64v low, u64v high) {
        u32 lanes[lanes32];
        for (int i = 0; i < lanes64; ++i) {
            lanes[i] = u32(low[i]);
            lanes[lanes64 + i] = u32(high[i]);
        }
        return load<u32v>(lanes);
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
