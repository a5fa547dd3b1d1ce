// A panel of the right operand: the columns that a tile's lanes stand for.
#ifndef LOWPREC_PANEL_H
#define LOWPREC_PANEL_H

#include "accumulate/steps.h"

namespace lowprec {
inline namespace LP_ISA {

struct Panel {
    i64 first, columns, skip;  // first column of the operand, how many, empty lanes before them
    int vectors;
    const float *data = nullptr;
    alignas(64) float start[most_vectors * lanes32];  // what sums start from: 0, and 1 in empty lanes, where 0 would
                                                      // slow steps

    // The lanes [at, at + wide vectors), of `skip` empty ones and all columns.
    Panel(i64 at, i64 skip_all, i64 all_columns, int wide)
        : first(at == 0 ? 0 : at - skip_all), skip(at == 0 ? skip_all : 0), vectors(wide) {
        const i64 lanes = wide * lanes32, room = lanes - skip, left = all_columns - first;
        columns = left < room ? left : room;
        for (i64 i = 0; i < lanes; i += lanes32) store(start + i, f32v{});
        for (i64 i = 0; i < skip; ++i) start[i] = 1;
        for (i64 i = skip + columns; i < lanes; ++i) start[i] = 1;
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
