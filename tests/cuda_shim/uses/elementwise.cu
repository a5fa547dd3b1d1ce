// Every float32 operation, and with them the functions of functions_exact.h.
#include "lowprec/elementwise.h"

using namespace lowprec;

#define LP_USE(name) *y++ = name##_operation::apply(a, b, c);

extern "C" __global__ void use(const float *x, float *y) {
    const float a = x[3 * threadIdx.x], b = x[3 * threadIdx.x + 1], c = x[3 * threadIdx.x + 2];
    y += 64 * threadIdx.x;
    LP_OPERATIONS(LP_USE)
}
