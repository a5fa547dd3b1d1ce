// The state of the processor that decides what arithmetic gives: rounding direction, subnormal numbers taken or given
// as zeros, exceptions that trap. Other libraries change a thread's (torch.set_flush_denormal, fesetround, objects
// linked with -ffast-math), and a thread is born with its maker's.
#ifndef LOWPREC_PROCESSOR_STATE_H
#define LOWPREC_PROCESSOR_STATE_H

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace lowprec {

// While one lives its thread computes as IEEE 754 has it by default: to nearest even, with subnormal numbers, without
// traps. Then the thread has again what it had. The usual state costs a read and a comparison.
class DefaultState {
  public:
    DefaultState() {
#if defined(__x86_64__)
        before = __builtin_ia32_stmxcsr();
        changed = (before & ~sticky) != 0x1F80;
        if (changed) __builtin_ia32_ldmxcsr(0x1F80);
#elif defined(__aarch64__)
        __asm__ volatile("mrs %0, fpcr" : "=r"(before));
        changed = before != 0;
        if (changed) __asm__ volatile("msr fpcr, %0" : : "r"(0ul) : "memory");
#else
        changed = std::fegetenv(&before) == 0 && std::fesetenv(FE_DFL_ENV) == 0;
#endif
    }

    ~DefaultState() {
        if (!changed) return;
#if defined(__x86_64__)
        __builtin_ia32_ldmxcsr(before);
#elif defined(__aarch64__)
        __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
#else
        std::fesetenv(&before);
#endif
    }

    DefaultState(const DefaultState &) = delete;
    DefaultState &operator=(const DefaultState &) = delete;

  private:
#if defined(__x86_64__)
    static constexpr unsigned sticky = 0x3F;  // which exceptions there have been: they decide nothing
    unsigned before;
#elif defined(__aarch64__)
    unsigned long before;
#else
    std::fenv_t before;
#endif
    bool changed;
};

}  // namespace lowprec
#endif
