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

// Calls piece(with, i) for every i below `count`, on this thread and on others of the pool that are free. The first
// exception of a piece is thrown here, after all that began have ended. Pieces may call this too.
void run_pieces(int count, void (*piece)(const void *with, int i), const void *with);

// Calls f(begin, end) for pieces of [0, n) cut at multiples of `step`, one for each thread.
template <class F>
void in_pieces(i64 n, i64 step, int threads, const F &f) {
    const i64 length = ((n + threads - 1) / threads + step - 1) / step * step;
    if (length >= n) return n ? f(i64(0), n) : void();
    const auto piece = [&](int i) { f(i * length, std::min<i64>(n, (i + 1) * length)); };
    run_pieces(
        int((n + length - 1) / length),
        [](const void *with, int i) { (*static_cast<const decltype(piece) *>(with))(i); }, &piece);
}

// The same for elements of which `grain` are worth a thread.
template <class F>
void parallel_for(i64 n, i64 grain, int threads, const F &f) {
    in_pieces(n, 256, threads_for(n / grain, threads), f);
}

}  // namespace lowprec
#endif
