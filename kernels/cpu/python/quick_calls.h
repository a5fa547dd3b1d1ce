// Whole calls that are remembered by what they were asked for, so that the next such call finds its own at once.
#ifndef LOWPREC_QUICK_CALLS_H
#define LOWPREC_QUICK_CALLS_H

#include <vector>

#include "lowprec/bits.h"
#include "python/arrays.h"

namespace lowprec {

// What every quick call asks of its surroundings: the backend in force, which is to be lowprec's own, and how many
// threads there may be.
struct Surroundings {
    nanobind::object backend, own_backend, threads;

    bool are_ours() const { return backend().is(own_backend); }
    int thread_count() const { return int(PyLong_AsLong(threads().ptr())); }
};

// Calls of one kind, of which each is for arrays of one dtype, a format and a rounding (None where there is none), as
// they were named.
template <class Call>
class QuickCalls {
  public:
    // The call as Python holds it; an invalid object where there is none.
    nanobind::object find(nanobind::handle x, nanobind::handle format, nanobind::handle rounding) const {
        if (!PyArray_CheckExact(x.ptr())) return {};
        const int type = PyArray_DESCR(as_array(x))->type_num;
        for (const Entry &entry : entries)
            if (entry.type == type && same(entry.format, format) && same(entry.rounding, rounding)) return entry.call;
        return {};
    }

    void remember(nanobind::handle dtype, nanobind::object format, nanobind::object rounding, nanobind::object call) {
        nanobind::cast<const Call &>(call);  // or an error
        Entry entry = {reinterpret_cast<PyArray_Descr *>(dtype.ptr())->type_num, format, rounding, call};
        if (entries.size() < most)
            entries.push_back(std::move(entry));
        else
            entries[oldest++ % most] = std::move(entry);
    }

  private:
    static constexpr size_t most = 16;

    struct Entry {
        int type;
        nanobind::object format, rounding, call;
    };

    // Objects that compare as equal may differ, as 1 and True do; names do not.
    static bool same(nanobind::handle a, nanobind::handle b) {
        if (a.is(b)) return true;
        return PyUnicode_CheckExact(a.ptr()) && PyUnicode_CheckExact(b.ptr()) && !PyUnicode_Compare(a.ptr(), b.ptr());
    }

    std::vector<Entry> entries;
    size_t oldest = 0;
};

}  // namespace lowprec
#endif
