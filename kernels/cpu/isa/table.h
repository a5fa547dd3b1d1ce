// What every instruction set's object offers: one table of function pointers for each family of loops. Each takes a
// job, declared in its family's folder, and a range of what there is to do.
#ifndef LOWPREC_TABLE_H
#define LOWPREC_TABLE_H

#include "lowprec/bits.h"

namespace lowprec {

struct ConvertJob;
struct DecodeJob;
struct RandomJob;
struct RoundingTable {
    // Elements [begin, end). True where a NaN met a format that has none.
    bool (*convert)(const ConvertJob &, i64 begin, i64 end);
    void (*decode)(const DecodeJob &, i64 begin, i64 end);
    void (*random)(const RandomJob &, i64 begin, i64 end);
};

struct ElementwiseJob;
struct ExactJob;
struct ElementwiseTable {
    // Elements [begin, end) of the result. True where a NaN met a format that has none.
    bool (*run)(const ElementwiseJob &, i64 begin, i64 end);
    int (*exact)(const ExactJob &, i64 begin, i64 end);  // ExactOutcome's bits
    // The same where float32 holds every operand.
    int (*exact_narrow)(const ExactJob &, i64 begin, i64 end);
    // How many of the float32 numbers with bits [begin, end) have results outside their brackets (see brackets.h), or
    // not those of the shorter way (see functions_doubles.h).
    i64 (*outside_brackets)(int operation, i64 begin, i64 end);
};

struct ProductJob;
struct Region;
struct SumJob;
struct ReduceJob;
struct MaximumJob;
struct ColumnJob;
struct WindowJob;
struct SumTable {
    void (*product)(const ProductJob &, const Region &);
    void (*parts)(const SumJob &, i64 begin, i64 end);
    void (*reduce)(const ReduceJob &, i64 begin, i64 end);
    void (*maximum)(const MaximumJob &, i64 begin, i64 end);
    void (*columns)(const ColumnJob &, i64 begin, i64 end);
    void (*windows)(const WindowJob &, i64 begin, i64 end);         // lines of windows, over images and panels of lanes
    void (*dense_windows)(const WindowJob &, i64 begin, i64 end);   // the same, over images and groups
    void (*window_weights)(const WindowJob &, i64 begin, i64 end);  // kernel rows, over panels of lanes
};

struct BlockJob;
struct SpreadJob;
struct MagnitudeJob;
struct BlockTable {
    // Block rows [begin, end), columns [left, right). True where a NaN met a format that has none.
    bool (*quantize)(const BlockJob &, i64 begin, i64 end, i64 left, i64 right);
    // True where a code has bits above the format's width.
    bool (*dequantize)(const SpreadJob &, i64 begin, i64 end, i64 left, i64 right);
    double (*magnitude)(const MagnitudeJob &, i64 begin, i64 end);  // the largest finite one
};

struct PackingJob;
struct PackingTable {
    // Codes [begin, end) of a row, begin a multiple of 8. True where a code does not fit.
    bool (*pack)(const PackingJob &, i64 row, i64 begin, i64 end);
    void (*unpack)(const PackingJob &, i64 row, i64 begin, i64 end);
};

struct MagnitudesJob;
struct Magnitudes;
struct ChangesJob;
struct Changes;
struct UnderflowJob;
struct CountingTable {
    Magnitudes (*magnitudes)(const MagnitudesJob &);
    Changes (*changes)(const ChangesJob &);
    i64 (*underflows)(const UnderflowJob &);
};

struct Table {
    const char *isa;
    const RoundingTable *rounding;
    const ElementwiseTable *elementwise;
    const SumTable *sums;
    const BlockTable *blocks;
    const PackingTable *packing;
    const CountingTable *counting;
};

}  // namespace lowprec
#endif
