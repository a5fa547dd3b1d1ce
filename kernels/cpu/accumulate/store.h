// Sums brought to where their results lie.
#ifndef LOWPREC_STORE_H
#define LOWPREC_STORE_H

#include "accumulate/accumulation.h"
#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

// Stores values that lie on the stored format's grid. Rows are read in whole vectors: up to lanes32 floats further.
struct Store {
    const Destination &out;
    Rounder<u32> rounder;
    bool half, bfloat;
    bool powers;  // of two alone, float8_e8m0fnu: its codes are float32's exponents, and reach below 32-bit lanes

    explicit Store(const Destination &target);

    // `count` values, and rows of `width` floats each.
    void row(const float *from, char *to, i64 count) const;
    void rows(const float *from, i64 width, char *to, i64 rows, i64 count) const;

  private:
    template <class Code, bool exponents>
    void codes(const float *from, char *to, i64 count) const;
    u16v code16(f32v x) const;
    void rows_turned(const float *from, i64 width, char *to, i64 rows, i64 count) const;
    void note_nan(const float *from, i64 count) const;
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
