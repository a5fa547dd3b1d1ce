// The pool of threads without Python: pieces within pieces, calls from several threads, failures, forks, no threads.
// Prints "ok", or what went wrong; arguments name the checks.
#include "threads/threads.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

using namespace lowprec;

namespace {

void expect(bool holds, const char *what) {
    if (holds) return;
    std::printf("%s\n", what);
    std::exit(1);
}

// The sum of [0, n) by so many threads, each piece of which is summed by so many again.
i64 sum(i64 n, int threads, int depth) {
    std::atomic<i64> total{0};
    in_pieces(n, 1, threads, [&](i64 begin, i64 end) {
        if (depth > 1) {
            total += sum(end - begin, threads, depth - 1) + begin * (end - begin);
        } else {
            for (i64 i = begin; i < end; ++i) total += i;
        }
    });
    return total;
}

void check_sum(int threads, int depth) {
    const i64 n = 10'000;
    expect(sum(n, threads, depth) == n * (n - 1) / 2, "a piece was left out or done twice");
}

void pieces() {
    for (i64 n : {0, 1, 2, 255, 256, 257, 1000})
        for (i64 step : {1, 7, 256})
            for (int threads : {1, 2, 3, 8, 100}) {
                std::vector<std::atomic<int>> seen(size_t(n) + 1);
                in_pieces(n, step, threads, [&](i64 begin, i64 end) {
                    expect(begin < end && begin % step == 0, "an empty piece, or one that begins between steps");
                    for (i64 i = begin; i < end; ++i) ++seen[size_t(i)];
                });
                for (i64 i = 0; i < n; ++i) expect(seen[size_t(i)] == 1, "an element was left out or done twice");
            }
}

void nested() {
    for (int i = 0; i < 20; ++i) check_sum(3, 4);
}

void callers() {
    std::vector<std::thread> several;
    for (int t = 0; t < 6; ++t)
        several.emplace_back([t] {
            for (int i = 0; i < 300; ++i) check_sum(2 + t % 3, 1 + i % 2);
        });
    for (std::thread &thread : several) thread.join();
}

void failures() {
    for (int i = 0; i < 300; ++i) {
        bool met = false;
        try {
            in_pieces(64, 1, 8, [](i64 begin, i64) {
                if (begin >= 16) throw std::runtime_error("a piece failed");
            });
        } catch (const std::runtime_error &) {
            met = true;
        }
        expect(met, "an exception got lost");
        check_sum(8, 1);
    }
}

bool child_succeeds(void (*check)()) {
    const pid_t child = fork();
    if (child == 0) {
        check();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Forks while other threads are in the middle of calls.
void forks() {
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int t = 0; t < 2; ++t)
        busy.emplace_back([&] {
            while (!stop) check_sum(3, 2);
        });
    for (int i = 0; i < 50; ++i) expect(child_succeeds([] { check_sum(4, 2); }), "a forked child failed");
    stop = true;
    for (std::thread &thread : busy) thread.join();
}

// The system refuses threads: to users other than root as many processes as they have, to all more memory.
void no_threads() {
    expect(child_succeeds([] {
               const rlimit none = {0, 0};
               setrlimit(RLIMIT_NPROC, &none);
               expect(getuid() != 0 || setuid(65534) == 0, "cannot become another user");
               bool refused = false;
               try {
                   std::thread([] {}).join();
               } catch (const std::system_error &) {
                   refused = true;
               }
               expect(refused, "the limit does not hold here");
               check_sum(8, 2);
           }),
           "without threads the work was not done");
}

// Where there are more pieces than threads, help comes after the first ones, and from no more threads than asked for,
// or than there are processors.
void several_pieces() {
    for (int threads : {2, 3, 6}) {
        check_sum(8, 1);  // makes seven threads, which look for work and then sleep
        if (threads > 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::atomic<int> begun{0}, now{0}, most{0};
        const int wanted = std::min(threads, std::max(2, default_threads()));
        const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        in_pieces(400, 1, 40, threads, [&](i64 begin, i64 end) {
            const int at_once = ++now;
            for (int seen = most; at_once > seen && !most.compare_exchange_weak(seen, at_once);) {
            }
            const bool first = begun++ == 0;
            do {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            } while (!first && most < wanted && std::chrono::steady_clock::now() < patience);
            expect(end - begin == 10, "pieces are not of one length");
            --now;
        });
        expect(begun == 40, "a piece was left out or done twice");
        expect(most == wanted, "more threads helped than should, or fewer");
    }
}

double processor_seconds() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// One of two threads sleeps in its piece while the other waits: for it, or for work. Who waited in a loop would take
// the processor for as long as that; a busy machine cannot make this fail, since processor time is all that counts.
void waiting() {
    for (bool caller_sleeps : {false, true}) {
        const std::thread::id caller = std::this_thread::get_id();
        std::atomic<int> begun{0};
        const double before = processor_seconds();
        in_pieces(2, 1, 2, [&](i64, i64) {
            ++begun;
            while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if ((std::this_thread::get_id() == caller) == caller_sleeps)
                std::this_thread::sleep_for(std::chrono::milliseconds(400));
        });
        expect(processor_seconds() - before < 0.2, "a thread that waits does not sleep");
    }
}

// A thread that is made while its maker rounds upwards rounds to nearest all the same. Each of the two pieces is one
// thread's, however busy the machine is. To be called first: it is the pool's first thread that is looked at.
void born() {
    const auto rounds_up = [] {
        volatile float one = 1, little = 1e-9f;
        return one + little > 1;
    };
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> begun{0};
    std::fesetround(FE_UPWARD);
    in_pieces(2, 1, 2, [&](i64, i64) {
        ++begun;
        while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (std::this_thread::get_id() == caller)
            expect(rounds_up(), "the caller's direction was changed");
        else
            expect(!rounds_up(), "a thread rounds as the one did that made it");
    });
    std::fesetround(FE_TONEAREST);
}

}  // namespace

int main(int count, char **names) {
    const struct {
        const char *name;
        void (*check)();
    } checks[] = {{"born", born},       {"pieces", pieces},     {"nested", nested},
                  {"callers", callers}, {"failures", failures}, {"several_pieces", several_pieces},
                  {"waiting", waiting}, {"forks", forks},       {"no_threads", no_threads}};
    for (int i = 1; i < count; ++i)
        for (const auto &known : checks)
            if (std::strcmp(names[i], known.name) == 0) known.check();
    std::printf("ok\n");
}
