// Memory for operands decoded to float32.
#ifndef LOWPREC_SCRATCH_H
#define LOWPREC_SCRATCH_H

#include <cstddef>
#include <new>

#include "lowprec/bits.h"

namespace lowprec {
inline namespace LP_ISA {

// Memory that grows and is kept by its thread: pure scratch, so that repeated calls meet no page faults.
struct Scratch {
    float *data = nullptr;
    i64 size = 0;
    static constexpr std::align_val_t line{64};

    ~Scratch() { ::operator delete(data, line); }
    float *of(i64 floats) {
        if (floats > size) {
            ::operator delete(data, line);
            data = nullptr;
            size = 0;
            const i64 more = (floats + 1023) & ~i64(1023);
            data = static_cast<float *>(::operator new(std::size_t(more) * sizeof(float), line));
            size = more;
        }
        return data;
    }
};
}  // namespace LP_ISA
}  // namespace lowprec
#endif
