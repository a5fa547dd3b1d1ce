// The jobs of rounding, decoding and random words: what one call over arrays is, in numbers.
#ifndef LOWPREC_ROUNDING_JOBS_H
#define LOWPREC_ROUNDING_JOBS_H

#include "lowprec/round.h"

namespace lowprec {

// How the elements of an array are stored. `coded` is any format's codes in 1, 2, 4 or 8 bytes.
enum Storage {
    coded8,
    coded16,
    coded32,
    coded64,
    real32,
    real64,
    int8s,
    int16s,
    int32s,
    int64s,
    uint8s,
    uint16s,
    uint32s,
    uint64s
};

// Element i of `from` is rounded with the random bits of index offset + i and stored as element i of `to`; both are
// contiguous.
struct ConvertJob {
    Rounding rounding;
    Format source;     // of coded input
    Rounding carrier;  // of coded output that holds values of another format (round keeps x's dtype)
    Storage in, out;
    int as_value;  // out holds values on the grid, not codes
    int wide;      // rounds in 64-bit lanes
    u64 key, offset;
    const void *from;
    void *to;
    i64 count = 0;  // elements of the whole result where it is converted in pieces
};

struct DecodeJob {
    Format format;
    Storage in, out;
    const void *from;
    void *to;
    i64 count = 0;  // as above
};

// Random words as arrays: `bits` <= 16 gives u16, else u32; words are those of indices offset, offset + 1, ...
struct RandomJob {
    int tag, bits;
    u64 key, offset;
    void *to;
};

inline int bytes_of(Storage s) {
    switch (s) {
        case coded8:
        case int8s:
        case uint8s:
            return 1;
        case coded16:
        case int16s:
        case uint16s:
            return 2;
        case coded32:
        case real32:
        case int32s:
        case uint32s:
            return 4;
        default:
            return 8;
    }
}

}  // namespace lowprec
#endif
