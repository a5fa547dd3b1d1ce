// One binding function per family; module.cpp calls them all.
#ifndef LOWPREC_MODULE_H
#define LOWPREC_MODULE_H

#include <nanobind/nanobind.h>

namespace lowprec {

void bind_rounding(nanobind::module_ &m);
void bind_random(nanobind::module_ &m);
void bind_elementwise(nanobind::module_ &m);
void bind_pipeline(nanobind::module_ &m);
void bind_product(nanobind::module_ &m);
void bind_reduction(nanobind::module_ &m);
void bind_exact(nanobind::module_ &m);
void bind_columns(nanobind::module_ &m);
void bind_windows(nanobind::module_ &m);
void bind_blocks(nanobind::module_ &m);
void bind_packing(nanobind::module_ &m);
void bind_magnitudes(nanobind::module_ &m);

}  // namespace lowprec
#endif
