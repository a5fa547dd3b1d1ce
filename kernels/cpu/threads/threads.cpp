// The pool of threads.
//
// One mutex guards everything: there are few pieces for each thread, so it is taken a few times a call. The caller
// works through its own pieces and waits only for those that another thread has begun, so that calls from several
// threads and from within pieces end whatever the pool does, and also where no thread could be made. It takes them from
// the front and the others take them from the back, so that each finds in its cache what it had in the last call. Who
// waits looks for some microseconds and then sleeps.
//
// The pool is never destroyed: its threads hold nothing and sleep when the process ends. A forked child has none of
// them, so it starts with a new pool.
#include "threads/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "threads/processor_state.h"

namespace lowprec {

namespace {

typedef std::chrono::steady_clock Clock;

// About as long as it takes until a sleeping thread works, and longer than the pause between two calls of a loop.
constexpr std::chrono::microseconds moment(50);

struct Job {
    void (*const piece)(const void *, int);
    const void *const with;
    int front = 0, back;         // the pieces between have not begun
    int wanted;                  // threads that may still come to help
    std::atomic<int> left;       // pieces that have not ended
    Job *later = nullptr;        // the next job that wants help
    std::exception_ptr failure;  // the first one
    std::condition_variable ended;

    Job(int pieces, int helpers, void (*function)(const void *, int), const void *argument)
        : piece(function), with(argument), back(pieces), wanted(helpers), left(pieces) {}
};

// Looks whether `there` is true (which it returns), for about 50 microseconds: longer than it takes to wake a sleeping
// thread, and than the pause between two calls of a loop. Where others want the processor it goes to them, and the time
// is soon over.
template <class Condition>
bool look(const Condition &there) {
    const auto end = Clock::now() + moment;
    do {
        for (int i = 0; i < 32; ++i) {
            if (there()) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
        sched_yield();
    } while (Clock::now() < end);
    return false;
}

int processors() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return std::max(1, int(std::thread::hardware_concurrency()));
}

class Pool {
  public:
    void run(Job &job) {
        // More threads than there are processors would take them from each other.
        const int helpers = job.wanted = std::min(job.wanted, std::max(1, processors() - 1)), pieces = job.back;
        std::unique_lock<std::mutex> lock(mutex);
        while (threads < helpers && add_thread()) {
        }
        if (!first) make_way();
        append(job);
        // To wake a thread costs the caller some ten microseconds. Where a thread has several pieces it is done for
        // calls in a row, and else as soon as what is left is seen to take longer than the thread does to come.
        const auto start = Clock::now();
        bool woken = pieces == helpers + 1 || start - last_end < moment;
        if (woken) wake_up(helpers);
        while (job.front < job.back) {
            work_on(job, job.front++, lock);
            if (woken || !asleep || (Clock::now() - start) * (job.back - job.front) < moment * job.front) continue;
            woken = true;
            wake_up(helpers);
        }
        if (job.wanted > 0) remove(job);
        lock.unlock();
        look([&] { return job.left == 0; });
        lock.lock();
        job.ended.wait(lock, [&] { return job.left == 0; });
        last_end = Clock::now();
    }

    // Around fork(): nobody else is in the middle of anything.
    void hold() { mutex.lock(); }
    void release() { mutex.unlock(); }

  private:
    // A thread that takes no signals: those are for the threads the program knows. False where none can be made.
    bool add_thread() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool made = true;
        try {
            std::thread made_one([this] { serve(); });
            handles[threads++] = made_one.native_handle();
            made_one.detach();
            callers_processor = -1;
        } catch (const std::system_error &) {
            made = false;
        } catch (const std::bad_alloc &) {
            made = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return made;
    }

    // Threads of the pool leave the caller's processor to it: woken there, they would wait for it to be done while
    // others stand idle.
    void make_way() {
#ifdef __linux__
        const int here = sched_getcpu();
        if (here == callers_processor || in_pool || !threads) return;
        callers_processor = here;
        cpu_set_t set;
        if (here < 0 || sched_getaffinity(0, sizeof set, &set) != 0) return;
        if (CPU_COUNT(&set) > 1) CPU_CLR(here, &set);
        for (int i = 0; i < threads; ++i) pthread_setaffinity_np(handles[i], sizeof set, &set);
#endif
    }

    void wake_up(int helpers) {
        for (int i = std::min(asleep, helpers); i > 0; --i) wake.notify_one();
    }

    // Jobs in the list want help, though they may have no piece left.
    void append(Job &job) {
        Job **at = &first;
        while (*at) at = &(*at)->later;
        *at = &job;
        waiting = true;
    }

    void remove(Job &job) {
        Job **at = &first;
        while (*at != &job) at = &(*at)->later;
        *at = job.later;
        waiting = first != nullptr;
    }

    // Piece `i`; the lock is held but for the work itself.
    void work_on(Job &job, int i, std::unique_lock<std::mutex> &lock) {
        const bool sound = !job.failure;
        lock.unlock();
        std::exception_ptr failure;
        try {
            if (sound) job.piece(job.with, i);
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        if (failure && !job.failure) job.failure = failure;
        if (--job.left == 0) job.ended.notify_one();  // under the lock: the job ends with its caller's wait
    }

    void help(Job &job, std::unique_lock<std::mutex> &lock) {
        if (--job.wanted == 0) remove(job);
        while (job.front < job.back) work_on(job, --job.back, lock);
    }

    void serve() {
        in_pool = true;
        const DefaultState state;  // not that of the call which made the thread
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            while (first) help(*first, lock);
            lock.unlock();
            const bool seen = look([&] { return waiting.load(); });
            lock.lock();
            if (seen || first) continue;  // also where others were quicker: more is likely to come
            ++asleep;
            wake.wait(lock);
            --asleep;
        }
    }

    std::mutex mutex;
    std::condition_variable wake;
    Job *first = nullptr;  // the jobs that want help
    std::atomic<bool> waiting{false};
    int threads = 0, asleep = 0;
    Clock::time_point last_end;            // of a job
    int callers_processor = -1;            // that the threads leave to it
    pthread_t handles[most_threads] = {};  // of the threads
    static thread_local bool in_pool;      // this is one of them
};

thread_local bool Pool::in_pool = false;

alignas(Pool) unsigned char storage[sizeof(Pool)];

Pool &pool() { return *std::launder(reinterpret_cast<Pool *>(storage)); }

// Made as the module is loaded: were it made at the first call, a fork could come in between.
[[maybe_unused]] const int made = [] {
    new (storage) Pool;
    return pthread_atfork([] { pool().hold(); }, [] { pool().release(); }, [] { new (storage) Pool; });
}();

std::atomic<int> wanted_threads{0};

}  // namespace

int default_threads() {
    const int wanted = wanted_threads.load(std::memory_order_relaxed);
    return wanted > 0 ? wanted : std::min(processors(), most_threads);
}

void set_default_threads(int threads) { wanted_threads = threads; }

void run_pieces(int count, int threads, void (*piece)(const void *with, int i), const void *with) {
    Job job(count, std::min(count, threads) - 1, piece, with);
    pool().run(job);
    if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace lowprec
