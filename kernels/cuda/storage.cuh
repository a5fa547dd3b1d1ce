// How a GPU thread reads and writes the elements of an array: what their bits mean, pairs at a time, any
// strides.
#ifndef LOWPREC_STORAGE_CUH
#define LOWPREC_STORAGE_CUH

#include "lowprec/round.h"

namespace lowprec {

// What a conversion needs beside the arrays. `source` decodes coded input; `carrier` encodes values of one
// format in the dtype of another (round keeps x's dtype).
struct Conversion {
    Rounding rounding, carrier;
    Format source;
};

constexpr int most_axes = 64;

// Arrays that are not C-contiguous: sizes of the axes, and byte steps along them, outermost first.
struct Strides {
    i64 size[most_axes], from[most_axes], to[most_axes];
    int axes;
};

inline namespace LP_ISA {

// Byte offset of element i (logical C order) in an array with these steps.
LP_INLINE i64 locate(i64 i, const Strides &strides, const i64 (&steps)[most_axes]) {
    i64 at = 0;
    for (int axis = strides.axes - 1; axis > 0; --axis) {
        i64 outer = i / strides.size[axis];
        at += (i - outer * strides.size[axis]) * steps[axis];
        i = outer;
    }
    return at + i * steps[0];
}

// `count` neighbours that one instruction moves.
template <class T, int count>
struct alignas(sizeof(T) * count) Pack {
    T item[count];
};

// Stores a pack whose place is aligned to its size. Small ones go as one integer: NVRTC splits stores of short packs.
template <class T, int count>
LP_INLINE void store_pack(T *to, const Pack<T, count> &pack) {
    if constexpr (sizeof(pack) == 2)
        *reinterpret_cast<u16 *>(to) = bit_cast<u16>(pack);
    else if constexpr (sizeof(pack) == 4)
        *reinterpret_cast<u32 *>(to) = bit_cast<u32>(pack);
    else
        *reinterpret_cast<Pack<T, count> *>(to) = pack;
}

template <class T, int count>
LP_INLINE bool is_aligned(const void *pointer) {
    return reinterpret_cast<u64>(pointer) % (sizeof(T) * count) == 0;
}

// double -> float of a value float32 holds, or NaN: the canonical NaN on every device.
LP_INLINE float narrow(double value) { return value != value ? bit_cast<float>(Carrier<u32>::nan) : float(value); }

// Codes of a format, in integers of type T.
template <class T>
struct Codes {
    typedef T stored;
    static constexpr bool is_whole = false;

    template <class E>
    LP_INLINE static E load(T code, const Decoder<E> &source) {
        return decode(E(code), source);
    }

    template <bool as_value, class E>
    LP_INLINE static T store(E rounded, const Rounder<E> &carrier) {
        return T(as_value ? round_bits<nearest_even, false>(rounded, E(0), carrier) : rounded);
    }
};

// 64-bit integers, which no lane's real holds exactly.
template <class T>
struct Whole {
    static constexpr bool value = false;
};
template <>
struct Whole<i64> {
    static constexpr bool value = true;
};
template <>
struct Whole<u64> {
    static constexpr bool value = true;
};

// Numbers the processor knows: float, double and the integers.
template <class T>
struct Numbers {
    typedef T stored;
    static constexpr bool is_whole = Whole<T>::value;

    template <class E>
    LP_INLINE static E load(T number, const Decoder<E> &) {
        return bit_cast<E>(typename Lanes<E>::real(number));
    }

    template <bool as_value, class E>
    LP_INLINE static T store(E rounded, const Rounder<E> &) {
        static_assert(as_value, "codes are stored as integers");
        if constexpr (sizeof(T) < sizeof(E))
            return narrow(bit_cast<double>(rounded));
        else
            return bit_cast<T>(rounded);
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
