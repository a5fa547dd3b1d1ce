// One binding function per family; module.cpp calls them all. What they bind, they bind as doors: calls that compute in
// the processor's default state, whatever the caller's is.
#ifndef LOWPREC_MODULE_H
#define LOWPREC_MODULE_H

#include <nanobind/nanobind.h>

#include <utility>

#include "threads/processor_state.h"

namespace lowprec {

typedef nanobind::call_guard<DefaultState> in_default_state;

// The module and its classes, every function of which is such a door: none can be bound without it.
class Module : public nanobind::module_ {
  public:
    explicit Module(const nanobind::module_ &module) : nanobind::module_(module) {}

    template <class Function, class... Extra>
    Module &def(const char *name, Function &&function, const Extra &...extra) {
        nanobind::module_::def(name, std::forward<Function>(function), in_default_state(), extra...);
        return *this;
    }
};

template <class T>
class Class : public nanobind::class_<T> {
  public:
    using nanobind::class_<T>::class_;

    template <class Function, class... Extra>
    Class &def(const char *name, Function &&function, const Extra &...extra) {
        nanobind::class_<T>::def(name, std::forward<Function>(function), in_default_state(), extra...);
        return *this;
    }
    template <class... Arguments, class... Extra>
    Class &def(nanobind::init<Arguments...> &&init, const Extra &...extra) {
        nanobind::class_<T>::def(std::move(init), in_default_state(), extra...);
        return *this;
    }
};

void bind_rounding(Module &m);
void bind_random(Module &m);
void bind_elementwise(Module &m);
void bind_pipeline(Module &m);
void bind_product(Module &m);
void bind_reduction(Module &m);
void bind_exact(Module &m);
void bind_columns(Module &m);
void bind_windows(Module &m);
void bind_blocks(Module &m);
void bind_packing(Module &m);
void bind_magnitudes(Module &m);
void bind_paths(Module &m);

}  // namespace lowprec
#endif
