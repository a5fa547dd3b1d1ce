// The module lowprec._kernels. Each module_*.cpp binds one family of calls.
#define LP_IMPORTS_NUMPY
#include "python/module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "isa/dispatch.h"
#include "python/arrays.h"
#include "threads/threads.h"

namespace nb = nanobind;

namespace {

// The default state for what Python computes within the context.
class StateContext {
  public:
    void enter() { state.emplace(); }
    void exit(nb::args) { state.reset(); }

  private:
    std::optional<lowprec::DefaultState> state;
};

}  // namespace

NB_MODULE(_kernels, module) {
    if (_import_array() < 0) throw nb::python_error();
    lowprec::Module m(module);
    m.doc() = "Compiled loops of lowprec; lowprec.backends.cpu is their Python face.";
    m.def("isa", [] { return std::string(lowprec::table().isa); }, "Name of the instruction set in use.");
    m.def("isa_names", &lowprec::isa_names, "Names this machine can run, worst first.");
    m.def("set_isa", &lowprec::set_isa, nb::arg("name"), "Forces an instruction set (tests and benchmarks).");
    m.def("default_threads", &lowprec::default_threads, "Threads of calls that ask for 0.");
    m.def("set_default_threads", &lowprec::set_default_threads, nb::arg("threads"),
          "Makes calls that ask for 0 threads use so many; 0: as many as the process may run on.");
    m.def(
        "set_leak_warnings", &nb::set_leak_warnings, nb::arg("on"),
        "Whether the end of the process names objects of this module that are still there; lowprec._exit knows when.");
    nb::class_<StateContext>(m, "DefaultState", "Within it this thread computes in the processor's default state.")
        .def(nb::init<>())
        .def("__enter__", &StateContext::enter)
        .def("__exit__", &StateContext::exit);
    lowprec::bind_rounding(m);
    lowprec::bind_random(m);
    lowprec::bind_elementwise(m);
    lowprec::bind_pipeline(m);
    lowprec::bind_product(m);
    lowprec::bind_reduction(m);
    lowprec::bind_exact(m);
    lowprec::bind_columns(m);
    lowprec::bind_windows(m);
    lowprec::bind_blocks(m);
    lowprec::bind_packing(m);
    lowprec::bind_magnitudes(m);
    lowprec::bind_paths(m);
}
