// How a kernel reads one of several operands: arrays of codes or numbers, or one number in place of an array.
#ifndef LOWPREC_OPERANDS_CUH
#define LOWPREC_OPERANDS_CUH

#include "lowprec/exact.h"
#include "storage.cuh"

namespace lowprec {
inline namespace LP_ISA {

struct Number {};

// Operand n of a job that has data[n], format[n] and number[n]: elements as doubles or floats, exactly. E: lanes that
// hold its codes' values as normal numbers.
template <class Real, class E, class From>
struct Reader {
    static constexpr bool is_number = false;
    Decoder<E> source;
    const char *data;

    template <class Job>
    LP_INLINE Reader(const Job &job, int n)
        : source(make_decoder<E>(job.format[n])), data(static_cast<const char *>(job.data[n])) {}
    LP_INLINE Real operator()(i64 at) const {
        const E bits = From::load(*reinterpret_cast<const typename From::stored *>(data + at), source);
        return Real(bit_cast<typename Lanes<E>::real>(bits));
    }
};

template <class Real, class E>
struct Reader<Real, E, Number> {
    static constexpr bool is_number = true;
    Real number;

    template <class Job>
    LP_INLINE Reader(const Job &job, int n) : number(Real(job.number[n])) {}
    LP_INLINE Real operator()(i64) const { return number; }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
