// Random words of neighbouring sums, whether these are columns of a row or rows of a column (the map of
// lowprec.matmul).
#ifndef LOWPREC_REDUCE_WORDS_H
#define LOWPREC_REDUCE_WORDS_H

#include "accumulate/steps.h"

namespace lowprec {
inline namespace LP_ISA {

// Words for the numbers (of groups, or of intermediate results) that share the counters of c3: word[pair][vector].
template <i64 most>
struct ReduceWords {
    u32v word[2][most];

    template <int rounds>
    void draw(const WordPlace &place, u32 c3, i64 vectors, bool lanes_are_rows) {
        i64 j = 0;
        if (lanes_are_rows) {
            for (; j + 2 <= vectors; j += 2) rows<rounds, 2>(place, c3, j);
            for (; j < vectors; ++j) rows<rounds, 1>(place, c3, j);
        }
        for (; j + 4 <= vectors; j += 4) columns<rounds, 4>(place, c3, j);
        for (; j < vectors; ++j) columns<rounds, 1>(place, c3, j);
    }

  private:
    template <int rounds, int count>
    LP_INLINE void columns(const WordPlace &place, u32 c3, i64 j) {
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
    template <int rounds, int count>
    LP_INLINE void rows(const WordPlace &place, u32 c3, i64 j) {
        Counters c[2 * count];
        for (int part = 0; part < 2 * count; ++part) {
            const u32 row = place.row + u32(j) * lanes32;
            c[part].c0 = u64v{} + place.head;
            c[part].c1 = (lane_numbers(part * lanes64) + row) & 0xffffffffull;
            c[part].c2 = u64v{} + (place.column >> 4);
            c[part].c3 = u64v{} + (c3 | ((place.column & 15) >> 1));
        }
        philox<rounds>(c, place.key);
        const bool odd = place.column & 1;
        for (int v = 0; v < count; ++v) {
            const Counters &low = c[2 * v], &high = c[2 * v + 1];
            word[0][j + v] = odd ? joined(low.c1, high.c1) : joined(low.c0, high.c0);
            word[1][j + v] = odd ? joined(low.c3, high.c3) : joined(low.c2, high.c2);
        }
    }
    static LP_INLINE u32v joined(u64v low, u64v high) {
        typedef u32 half __attribute__((vector_size(LP_VECTOR_BYTES / 2)));
        const half halves[] = {__builtin_convertvector(low, half), __builtin_convertvector(high, half)};
        return load<u32v>(halves);
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
