// Jobs of packing: codes of at most 8 bits, one per byte, and the bytes they are packed into.
#ifndef LOWPREC_PACKING_JOB_H
#define LOWPREC_PACKING_JOB_H

#include "lowprec/bits.h"

namespace lowprec {

// Rows of `codes` codes of `bits` each. A packed row is a stream of bits, the lowest first, in `bytes` bytes.
struct PackingJob {
    int bits;
    i64 codes, bytes;
    const u8 *from;
    u8 *to;
};

}  // namespace lowprec
#endif
