// Stored numbers in float32's lanes, in order or one by one.
#ifndef LOWPREC_NUMBERS_H
#define LOWPREC_NUMBERS_H

#include "isa/lanes.h"
#include "operands/operand.h"

namespace lowprec {
inline namespace LP_ISA {

template <Element element>
constexpr int bytes_each = element == Element::real32 ? 4 : 2;

template <Element element>
LP_INLINE f32v lanes_from(const char *at) {
    if constexpr (element == Element::real32) return load<f32v>(at);
    if constexpr (element == Element::half) return half_to_real(load<u16v>(at));
    if constexpr (element == Element::bfloat) return bfloat_to_real(load<u16v>(at));
}

template <Element element>
LP_INLINE float one_from(const char *at) {
    if constexpr (element == Element::real32) return load<float>(at);
    if constexpr (element == Element::half) return half_to_real(u16v{load<u16>(at)})[0];
    if constexpr (element == Element::bfloat) return bit_cast<float>(u32(load<u16>(at)) << 16);
}

template <Element kind>
struct OfElement {
    static constexpr Element element = kind;
};

// Calls a function of an element that it is told as a constant.
template <class F>
LP_INLINE auto of_element(Element element, F f) {
    if (element == Element::half) return f(OfElement<Element::half>{});
    if (element == Element::bfloat) return f(OfElement<Element::bfloat>{});
    return f(OfElement<Element::real32>{});
}

}  // namespace LP_ISA
}  // namespace lowprec
#endif
