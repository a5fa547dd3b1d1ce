// Which instruction set's table is in use, and loops over threads. Results never depend on either.
#ifndef LOWPREC_DISPATCH_H
#define LOWPREC_DISPATCH_H

#include <omp.h>

#include <algorithm>
#include <string>
#include <vector>

#include "isa/table.h"

namespace lowprec {

// The table in use: the best the processor has, unless LOWPREC_ISA or set_isa says otherwise.
const Table &table();

// The names this machine can run, worst first.
std::vector<std::string> isa_names();

// Forces a table (tests, benchmarks). Throws std::invalid_argument for a name not in isa_names().
void set_isa(const std::string &name);

// Calls f(begin, end) for pieces of [0, n). threads = 0 means OpenMP's default; small work stays on one
// thread.
template <class F>
void parallel_for(i64 n, i64 grain, int threads, const F &f) {
    if (threads <= 0) threads = omp_get_max_threads();
    threads = int(std::min<i64>(threads, n / std::max<i64>(grain, 1)));
    if (threads <= 1) {
        f(i64(0), n);
        return;
    }
    const i64 piece = ((n + threads - 1) / threads + 255) / 256 * 256;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; ++t) {
        i64 begin = std::min<i64>(n, t * piece), end = std::min<i64>(n, begin + piece);
        if (begin < end) f(begin, end);
    }
}

}  // namespace lowprec
#endif
