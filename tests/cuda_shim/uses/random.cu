// Philox with the numbers of rounds in use; words are pinned elsewhere.
#include "lowprec/random.h"

extern "C" __global__ void use(unsigned int *words, unsigned long long key) {
    lowprec::Words ten = lowprec::philox<10>(threadIdx.x, 1, 2, 3, key), seven = lowprec::philox<7>(0, 1, 2, 3, key);
    for (int i = 0; i < 4; ++i) words[8 * threadIdx.x + i] = ten.word[i] ^ seven.word[i];
}
