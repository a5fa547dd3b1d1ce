// Strips whose results go straight to where they lie: products of one part without another rounding behind it, into
// neighbouring float16 or float32.
#ifndef LOWPREC_QUICK_TILES_H
#define LOWPREC_QUICK_TILES_H

#include "accumulate/store.h"
#include "product/chain.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr int quick_rows = 32;

// Up to quick_rows rows of a panel, of which the first `columns` lanes are stored. False: some sum needs another way
// than the quick one, and results must be made again.
typedef bool (*QuickTile)(const Chain &, const Rounders &, const float *a, const float *b, int rows, i64 columns,
                          char *to, long to_row);

// None where results, or how they are rounded, do not suit. Chains start from 0, of group number 0.
QuickTile quick_tile(Path path, const ProductJob &job, const Store &keep, int vectors);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
