// Conversions between float32 and the 16-bit formats next to it that take the machine an instruction or a few.
#ifndef LOWPREC_MACHINE_H
#define LOWPREC_MACHINE_H

#include "rounding/rounding_jobs.h"

namespace lowprec {
inline namespace LP_ISA {

// The conversions from float32: to float16 with infinities, to float16 saturating everything, to bfloat16.
enum class MachineWay { none, half, saturated_half, bfloat };
MachineWay machine_way(const ConvertJob &job);

// Elements [begin, end); false, and nothing done, where the job is not one of these.
bool convert_by_machine(const ConvertJob &job, i64 begin, i64 end);
bool decode_by_machine(const DecodeJob &job, i64 begin, i64 end);

}  // namespace LP_ISA
}  // namespace lowprec
#endif
