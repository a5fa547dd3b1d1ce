// Keys made of keys: words 0 and 1 of one counter.
#ifndef LOWPREC_DERIVED_KEYS_H
#define LOWPREC_DERIVED_KEYS_H

#include "lowprec/random.h"

namespace lowprec {

// What fold_in and split return, by their tags.
inline u64 derive(u64 key, int tag, u64 n) {
    const Words w = philox<10>(u32(tag) << 24, u32(n), u32(n >> 32), 0, key);
    return w.word[0] | u64(w.word[1]) << 32;
}

}  // namespace lowprec
#endif
