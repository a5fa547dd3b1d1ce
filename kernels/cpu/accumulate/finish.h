// What happens to sums after their chains: parts summed in stages, the last rounding, the stored result.
#ifndef LOWPREC_FINISH_H
#define LOWPREC_FINISH_H

#include "accumulate/steps.h"
#include "accumulate/store.h"

namespace lowprec {
inline namespace LP_ISA {

// Sums of a few rows, each `vectors` vectors long, rounded under (tag, index).
void round_rows(float *sums, i64 rows, i64 vectors, const Rounders &k, WordPlace place, int tag, u32 index);

// The sums of parts in up to three stages. Every stage adds in float32, ascending, from its first member: all but the
// last sum runs of so many, the last sums what there is.
struct Stages {
    i64 parts, run;
    int count;
};

LP_INLINE void add_rows(float *sum, const float *part, i64 floats, bool first) {
    for (i64 i = 0; i < floats; i += lanes32)
        store(sum + i, first ? load<f32v>(part + i) : load<f32v>(sum + i) + load<f32v>(part + i));
}

// Takes part number `p` of sums, `floats` at a time, into one buffer of `room` floats per stage; the last part leaves
// the total in the last one. round(sums, index) rounds an intermediate result.
template <class Round>
inline void take_part(float *part, float *sums, i64 room, i64 p, i64 floats, const Stages &s, const Round &round) {
    i64 members = s.parts, first_index = 0;
    for (int stage = 0; stage < s.count; ++stage, sums += room) {
        const bool last_stage = stage == s.count - 1;
        const i64 run = last_stage ? members : s.run;
        add_rows(sums, part, floats, p % run == 0);
        if (last_stage || (p % run != run - 1 && p != members - 1)) return;
        p /= run;
        round(sums, u32(first_index + p));
        members = (members + run - 1) / run;
        first_index += members;
        part = sums;
    }
}

// Room for a tile's sums in every stage.
typedef float TileSums[3][tile_floats + lanes32];

// The same for a tile of `rows` x `vectors`.
void take_part(float *part, TileSums &sums, i64 p, i64 rows, i64 vectors, const Stages &s, const Rounders &between,
               const WordPlace &place);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
