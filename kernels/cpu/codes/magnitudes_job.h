// Jobs that count what float32 numbers are like.
#ifndef LOWPREC_MAGNITUDES_JOB_H
#define LOWPREC_MAGNITUDES_JOB_H

#include "lowprec/bits.h"

namespace lowprec {

// What some numbers are like; of the finite ones, the sum of squares and the bits of the largest magnitude. The squares
// are added up in sixteen sums, of every sixteenth number each, and these in order: the same on every instruction set.
struct Magnitudes {
    i64 zeros, infinite, nan;
    double squares;
    u32 largest;
};

}  // namespace lowprec
#endif
