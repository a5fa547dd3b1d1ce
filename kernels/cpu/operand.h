// An operand of any storage and strides, read as float32 in runs along its innermost axis.
#ifndef LOWPREC_OPERAND_H
#define LOWPREC_OPERAND_H

#include "lowprec/bits.h"

namespace lowprec {

constexpr int max_axes = 8;

// How elements become float32: as they are, from 16-bit patterns, or through a table of 256 values.
enum class Element { real32, half, bfloat, table8 };

struct Operand {
    const char *data;
    const float *table;  // of table8
    Element element;
    long stride[max_axes];  // bytes
};

}  // namespace lowprec
#endif
