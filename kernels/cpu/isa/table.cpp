// Gathers the loops of one instruction set.
#include "isa/table.h"

namespace lowprec {
inline namespace LP_ISA {

#define LP_TEXT(name) #name
#define LP_NAME(name) LP_TEXT(name)

void product(const ProductJob &job, const Region &region);
void sum_parts(const SumJob &job, i64 begin, i64 end);
void reduce(const ReduceJob &job, i64 begin, i64 end);
void maximum(const MaximumJob &job, i64 begin, i64 end);
void columns(const ColumnJob &job, i64 begin, i64 end);
void windows(const WindowJob &job, i64 begin, i64 end);
void dense_windows(const WindowJob &job, i64 begin, i64 end);
void window_weights(const WindowJob &job, i64 begin, i64 end);
bool elementwise(const ElementwiseJob &job, i64 begin, i64 end);
int exact(const ExactJob &job, i64 begin, i64 end);
int exact_narrow(const ExactJob &job, i64 begin, i64 end);
i64 outside_brackets(int operation, i64 begin, i64 end);
Magnitudes magnitudes(const MagnitudesJob &job);
Changes changes(const ChangesJob &job);
i64 underflows(const UnderflowJob &job);

extern const RoundingTable rounding_table;
extern const BlockTable block_table;
extern const PackingTable packing_table;
extern const Table table;

const ElementwiseTable elementwise_table = {elementwise, exact, exact_narrow, outside_brackets};
const CountingTable counting_table = {magnitudes, changes, underflows};
const SumTable sum_table = {product, sum_parts, reduce, maximum, columns, windows, dense_windows, window_weights};
const Table table = {LP_NAME(LP_ISA), &rounding_table, &elementwise_table, &sum_table,
                     &block_table,    &packing_table,  &counting_table};

}  // namespace LP_ISA
}  // namespace lowprec
