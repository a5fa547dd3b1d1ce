// 2^x in float lanes on AVX-512: 2^(j / 32) from a table in registers, and powers of two.
#ifndef LOWPREC_ROOTS_OF_TWO_H
#define LOWPREC_ROOTS_OF_TWO_H

#include "isa/lanes.h"

namespace lowprec {
inline namespace LP_ISA {

#if defined(__AVX512DQ__) && LP_VECTOR_BYTES == 64

// x * 2^floor(power), rounded once.
LP_INLINE f32v scaled_by(f32v x, f32v power) {
    return (f32v)_mm512_maskz_scalef_ps((__mmask16)-1, (__m512)x, (__m512)power);
}

// 2^(j / 32) as two floats: the bits of the first, and what it lacks.
alignas(64) constexpr u32 root_high[32] = {
    0x3f800000, 0x3f82cd87, 0x3f85aac3, 0x3f88980f, 0x3f8b95c2, 0x3f8ea43a, 0x3f91c3d3, 0x3f94f4f0,
    0x3f9837f0, 0x3f9b8d3a, 0x3f9ef532, 0x3fa27043, 0x3fa5fed7, 0x3fa9a15b, 0x3fad583f, 0x3fb123f6,
    0x3fb504f3, 0x3fb8fbaf, 0x3fbd08a4, 0x3fc12c4d, 0x3fc5672a, 0x3fc9b9be, 0x3fce248c, 0x3fd2a81e,
    0x3fd744fd, 0x3fdbfbb8, 0x3fe0ccdf, 0x3fe5b907, 0x3feac0c7, 0x3fefe4ba, 0x3ff5257d, 0x3ffa83b3};
alignas(64) constexpr float root_low[32] = {
    0x0p+0f,          -0x1.9d4f52p-25f, 0x1.9f3122p-25f,  -0x1.fdb496p-25f, -0x1.c15742p-27f, -0x1.d2e8cap-25f,
    0x1.ceac48p-25f,  -0x1.5c0424p-25f, 0x1.4636e2p-25f,  -0x1.18aac6p-25f, 0x1.824684p-25f,  0x1.8624b4p-30f,
    -0x1.593abcp-25f, -0x1.2c561p-25f,  -0x1.5bd5ecp-27f, -0x1.f8b55p-25f,  0x1.9fcef4p-26f,  0x1.1d8beep-25f,
    -0x1.829fdp-25f,  -0x1.accc7cp-26f, 0x1.15506ep-27f,  -0x1.e64744p-25f, 0x1.51f848p-27f,  -0x1.b83b54p-25f,
    -0x1.a94b14p-26f, -0x1.a09438p-25f, -0x1.3d56b2p-27f, -0x1.8837ccp-27f, -0x1.822dbcp-27f, -0x1.908c94p-25f,
    0x1.52486cp-27f,  -0x1.246ebp-26f};

// The entry that the low five bits of each lane name.
LP_INLINE f32v looked_up(u32v number, const void *table) {
    const __m512 low = _mm512_load_ps(table), high = _mm512_load_ps(static_cast<const float *>(table) + 16);
    return (f32v)_mm512_permutex2var_ps(low, (__m512i)number, high);
}

constexpr float to_thirty_seconds = 0x1.8p+23f;   // adding and subtracting it rounds to an integer
constexpr float thirty_seconds = 0x1.715476p+5f;  // 32 / ln 2
constexpr float step_high = 0x1.62e43p-6f,
                step_low = -0x1.05c61p-34f;  // ln 2 / 32; x less a multiple of the first is exact

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
