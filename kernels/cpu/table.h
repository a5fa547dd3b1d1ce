// What every instruction set's object offers: one table of function pointers, and the jobs they take.
#ifndef LOWPREC_TABLE_H
#define LOWPREC_TABLE_H

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
};

struct DecodeJob {
    Format format;
    Storage in, out;
    const void *from;
    void *to;
};

// Random words as arrays: `bits` <= 16 gives u16, else u32; words are those of indices offset, offset + 1, ...
struct RandomJob {
    int tag, bits;
    u64 key, offset;
    void *to;
};

struct RoundingTable {
    // Elements [begin, end). True where a NaN met a format that has none.
    bool (*convert)(const ConvertJob &, i64 begin, i64 end);
    void (*decode)(const DecodeJob &, i64 begin, i64 end);
    void (*random)(const RandomJob &, i64 begin, i64 end);
};

struct ElementwiseJob;  // elementwise.h
struct ElementwiseTable {
    // Elements [begin, end) of the result. True where a NaN met a format that has none.
    bool (*run)(const ElementwiseJob &, i64 begin, i64 end);
};

struct ProductJob;  // product.h
struct SumJob;
struct ReduceJob;
struct MaximumJob;
struct Region;
struct ProductTable {
    void (*product)(const ProductJob &, const Region &);
    void (*sum)(const SumJob &, i64 begin, i64 end);
    void (*reduce)(const ReduceJob &, i64 begin, i64 end);
    void (*maximum)(const MaximumJob &, i64 begin, i64 end);
};

struct ArithmeticTable;  // arithmetic.h
struct BlockTable;       // blocks.h
struct PackTable;        // packing.h

struct Table {
    const char *isa;
    const RoundingTable *rounding;
    const ElementwiseTable *elementwise;
    const ProductTable *product;
    const ArithmeticTable *arithmetic;
    const BlockTable *blocks;
    const PackTable *packing;
};

}  // namespace lowprec
#endif
