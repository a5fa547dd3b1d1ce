// Fast paths, switched off by name.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa/fast_paths.h"
#include "python/module.h"

namespace nb = nanobind;

namespace lowprec {
namespace {

typedef std::vector<std::string> Names;

#define LP_NAME(name) #name,
const Names path_names = {LP_FAST_PATHS(LP_NAME)};
#undef LP_NAME

u32 bit_of(const std::string &name) {
    for (size_t i = 0; i < path_names.size(); ++i)
        if (path_names[i] == name) return u32(1) << i;
    std::string known;
    for (const std::string &path : path_names) known += (known.empty() ? "" : ", ") + path;
    throw std::invalid_argument("'" + name + "' is not a fast path that can be switched off; there are " + known);
}

void set_paths_off(const Names &names) {
    u32 off = 0;
    for (const std::string &name : names) off |= bit_of(name);
    __atomic_store_n(&fast_paths_off, off, __ATOMIC_RELAXED);
}

Names paths_off() {
    Names off;
    for (size_t i = 0; i < path_names.size(); ++i)
        if (!takes(FastPath(i))) off.push_back(path_names[i]);
    return off;
}

// Of the environment: names with commas between them.
Names first_off() {
    const char *given = std::getenv("LOWPREC_WITHOUT");
    std::stringstream text(given ? given : "");
    Names names;
    for (std::string name; std::getline(text, name, ',');) names.push_back(name);
    return names;
}

}  // namespace

void bind_paths(Module &m) {
    try {
        set_paths_off(first_off());
    } catch (const std::invalid_argument &error) {
        throw std::invalid_argument(std::string("the environment variable LOWPREC_WITHOUT: ") + error.what());
    }
    m.def("path_names", [] { return path_names; }, "Names of the fast paths.");
    m.def("paths_off", &paths_off, "Names of those that are switched off.");
    m.def("set_paths_off", &set_paths_off, nb::arg("names"), "Switches these off and the others on.");
    m.def(
        "takes", [](const std::string &name) { return !(fast_paths_off & bit_of(name)); }, nb::arg("path"),
        "Whether a fast path is taken where it can be.");
}

}  // namespace lowprec
