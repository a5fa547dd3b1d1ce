// Chooses the instruction set's table at run time.
#include "isa/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "isa/supported.h"

namespace lowprec {

// cmake says for which of these there are loops.
#ifdef LP_HAS_v2
namespace v2 {
extern const Table table;
}
#endif
#ifdef LP_HAS_v3
namespace v3 {
extern const Table table;
}
#endif
#ifdef LP_HAS_v4
namespace v4 {
extern const Table table;
}
#endif
#ifdef LP_HAS_portable
namespace portable {
extern const Table table;
}
#endif

namespace {

std::vector<const Table *> available() {
    std::vector<const Table *> tables;
#ifdef LP_HAS_v2
    tables.push_back(&v2::table);
#endif
#ifdef LP_HAS_v3
    if (supports_v3()) tables.push_back(&v3::table);
#endif
#ifdef LP_HAS_v4
    if (supports_v4()) tables.push_back(&v4::table);
#endif
#ifdef LP_HAS_portable
    tables.push_back(&portable::table);
#endif
    if (tables.empty())
        throw std::runtime_error("lowprec was compiled on a machine with other instructions, and for those alone");
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
