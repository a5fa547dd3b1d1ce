// Chooses the instruction set's table at run time.
#include "isa/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace lowprec {

#ifdef LP_X86
namespace v2 {
extern const Table table;
}
namespace v3 {
extern const Table table;
}
namespace v4 {
extern const Table table;
}
#else
namespace portable {
extern const Table table;
}
#endif

namespace {

std::vector<const Table *> available() {
    std::vector<const Table *> tables;
#ifdef LP_X86
    __builtin_cpu_init();
    tables.push_back(&v2::table);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        tables.push_back(&v3::table);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        tables.push_back(&v4::table);
#else
    tables.push_back(&portable::table);
#endif
    return tables;
}

const Table *find(const std::string &name) {
    for (const Table *t : available())
        if (name == t->isa) return t;
    std::string known;
    for (const Table *t : available()) known += std::string(known.empty() ? "" : ", ") + t->isa;
    throw std::invalid_argument("instruction set '" + name + "' is not one this machine can run: " + known);
}

std::atomic<const Table *> &current() {
    static std::atomic<const Table *> table{[] {
        const char *forced = std::getenv("LOWPREC_ISA");
        return forced && *forced ? find(forced) : available().back();
    }()};
    return table;
}

}  // namespace

const Table &table() { return *current().load(std::memory_order_relaxed); }

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (const Table *t : available()) names.push_back(t->isa);
    return names;
}

void set_isa(const std::string &name) { current().store(find(name)); }

}  // namespace lowprec
