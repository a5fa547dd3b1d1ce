// Gathers the loops of one instruction set.
#include "table.h"

namespace lowprec {
inline namespace LP_ISA {

#define LP_TEXT(name) #name
#define LP_NAME(name) LP_TEXT(name)

extern const RoundingTable rounding_table;
extern const ElementwiseTable elementwise_table;
extern const ProductTable product_table;
extern const ArithmeticTable arithmetic_table;
extern const BlockTable block_table;
extern const PackTable pack_table;
extern const Table table;

const Table table = {LP_NAME(LP_ISA),   &rounding_table, &elementwise_table, &product_table,
                     &arithmetic_table, &block_table,    &pack_table};

}  // namespace LP_ISA
}  // namespace lowprec
