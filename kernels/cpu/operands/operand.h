// An operand of any storage and strides, read as float32 in runs along its innermost axis.
#ifndef LOWPREC_OPERAND_H
#define LOWPREC_OPERAND_H

#include "lowprec/bits.h"

namespace lowprec {

constexpr int max_axes = 8;

// How elements become float32: as they are, from 16-bit patterns, or through a table of 256 values.
enum class Element { real32, half, bfloat, table8 };

// The values of the 256 codes of a format of up to eight bits.
struct CodeTable {
    float value[256] = {};
    u16 top[256] = {};    // their upper halves,
    bool in_top = false;  // which are the whole values, unless the format has values next to float32's smallest

    // From the values or their bits.
    void fill(const void *values) {
        u32 rest = 0;
        for (int i = 0; i < 256; ++i) {
            u32 bits;
            __builtin_memcpy(&bits, static_cast<const char *>(values) + 4 * i, sizeof bits);
            __builtin_memcpy(&value[i], &bits, sizeof bits);
            top[i] = u16(bits >> 16);
            rest |= bits << 16;
        }
        in_top = rest == 0;
    }
};

struct Operand {
    const char *data;
    const CodeTable *table;  // of table8
    Element element;
    long stride[max_axes];  // bytes
};

}  // namespace lowprec
#endif
