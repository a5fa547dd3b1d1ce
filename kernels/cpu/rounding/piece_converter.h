// A conversion that is prepared once and then runs on pieces, from buffer to result.
#ifndef LOWPREC_PIECE_CONVERTER_H
#define LOWPREC_PIECE_CONVERTER_H

#include "rounding/rounding_jobs.h"

namespace lowprec {
inline namespace LP_ISA {

class PieceConverter {
  public:
    // Of `job` all but the arrays counts; its offset says where the first piece lies.
    explicit PieceConverter(const ConvertJob &job);
    PieceConverter(const PieceConverter &) = delete;
    PieceConverter &operator=(const PieceConverter &) = delete;

    // Elements of which the first takes the random bits of index `offset`. True where a NaN met a format that has none.
    bool run(const void *from, void *to, u64 offset, i64 count);

    // Makes the random bits of up to 1024 elements, which then serve every run of these.
    void keep_words(u64 offset, i64 count);

  private:
    struct Prepared;
    ConvertJob job;
    Prepared *prepared;
    alignas(64) char room[1 << 12];  // where it lies
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
