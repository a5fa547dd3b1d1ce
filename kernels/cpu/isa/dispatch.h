// Which instruction set's table is in use. Results never depend on it.
#ifndef LOWPREC_DISPATCH_H
#define LOWPREC_DISPATCH_H

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

}  // namespace lowprec
#endif
