// Which instruction sets this machine has.
#ifndef LOWPREC_SUPPORTED_H
#define LOWPREC_SUPPORTED_H

namespace lowprec {

#if defined(__x86_64__)
inline bool supports_v3() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

inline bool supports_v4() {
    __builtin_cpu_init();
    return supports_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}
#endif

}  // namespace lowprec
#endif
