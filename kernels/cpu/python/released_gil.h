// The interpreter's lock given up while loops run.
#ifndef LOWPREC_RELEASED_GIL_H
#define LOWPREC_RELEASED_GIL_H

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace lowprec {

// nanobind's own ends the process with "terminate called" where a daemon thread comes back after the interpreter's end:
// Python then unwinds the thread by force, through functions that may not be unwound. Here it waits for the end of the
// process instead, as Python does itself from 3.14 on.
class ReleasedGil {
  public:
    ReleasedGil() : state(PyEval_SaveThread()) {}
    ReleasedGil(const ReleasedGil &) = delete;
    ReleasedGil &operator=(const ReleasedGil &) = delete;
    ~ReleasedGil() {
        try {
            PyEval_RestoreThread(state);
        } catch (...) {
            for (;;) pause();
        }
    }

  private:
    PyThreadState *state;
};

}  // namespace lowprec
#endif
