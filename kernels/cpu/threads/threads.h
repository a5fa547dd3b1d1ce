// Loops over threads: a pool of threads that are made when they are first wanted and sleep while they are not. Results
// never depend on how many there are.
#ifndef LOWPREC_THREADS_H
#define LOWPREC_THREADS_H

#include <algorithm>

#include "lowprec/bits.h"

namespace lowprec {

constexpr int most_threads = 1024;

// What calls that ask for 0 threads get: as many as `set_default_threads` says, or, where that is 0 as it is at first,
// one for every processor that this process may run on.
int default_threads();
void set_default_threads(int threads);

// The number of threads for so much work: as many as asked for, but no more than there are `portions` worth a thread.
inline int threads_for(i64 portions, int threads) {
    if (portions <= 1) return 1;
    return int(std::min<i64>(portions, threads > 0 ? threads : default_threads()));
}

// Calls piece(with, i) for every i below `count`, on this thread and on up to `threads` - 1 others of the pool that are
// free. The first exception of a piece is thrown here, after all that began have ended. Pieces may call this too.
void run_pieces(int count, int threads, void (*piece)(const void *with, int i), const void *with);

// Calls f(begin, end) for up to `pieces` pieces of [0, n) cut at multiples of `step`.
template <class F>
void in_pieces(i64 n, i64 step, int pieces, int threads, const F &f) {
    const i64 length = ((n + pieces - 1) / pieces + step - 1) / step * step;
    if (length >= n) return n ? f(i64(0), n) : void();
    const auto piece = [&](int i) { f(i * length, std::min<i64>(n, (i + 1) * length)); };
    run_pieces(
        int((n + length - 1) / length), threads,
        [](const void *with, int i) { (*static_cast<const decltype(piece) *>(with))(i); }, &piece);
}

// One for each thread.
template <class F>
void in_pieces(i64 n, i64 step, int threads, const F &f) {
    in_pieces(n, step, threads, threads, f);
}

// The same for elements of which `grain` are worth a thread: each has several pieces, so that one that is woken late,
// or that has less of its processor, leaves more of them to the others.
template <class F>
void parallel_for(i64 n, i64 grain, int threads, const F &f) {
    threads = threads_for(n / grain, threads);
    i64 pieces = 1;
    if (threads > 1)
        pieces = std::max(std::min<i64>(4 * threads, 2 * n / grain), std::min<i64>(16 * threads, n / grain));
    in_pieces(n, 256, int(pieces), threads, f);
}

}  // namespace lowprec
#endif
