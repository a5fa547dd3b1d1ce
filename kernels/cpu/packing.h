// Jobs of packing: codes of at most 8 bits, one per byte, and the bytes they are packed into.
#ifndef LOWPREC_PACKING_H
#define LOWPREC_PACKING_H

#include "table.h"

namespace lowprec {

// Rows of `codes` codes of `bits` each. A packed row is a stream of bits, the lowest first, in `bytes` bytes.
struct PackJob {
    int bits;
    i64 codes, bytes;
    const u8 *from;
    u8 *to;
};

struct PackTable {
    // Codes [begin, end) of a row, begin a multiple of 8. True where a code does not fit.
    bool (*pack)(const PackJob &, i64 row, i64 begin, i64 end);
    void (*unpack)(const PackJob &, i64 row, i64 begin, i64 end);
};

}  // namespace lowprec
#endif
