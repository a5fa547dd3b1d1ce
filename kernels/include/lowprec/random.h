// Philox4x32-R (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the map from an
// element's index to its random bits.
//
// A block of 64 half-words comes from 8 consecutive counters l = 0..7. Element p of the block takes
//     l = (p >> 1) & 7,  word = 2 * ((p >> 5) & 1) + (p & 1),  half-word = (p >> 4) & 1 (0: low 16 bits),
// so that words 0 and 1 of the eight counters, stored as 64-bit pairs, already lie in the order of the
// elements. A wide block of 32 whole words has l = (p >> 1) & 7, word = 2 * ((p >> 4) & 1) + (p & 1).
#ifndef LOWPREC_RANDOM_H
#define LOWPREC_RANDOM_H

#include "bits.h"

namespace lowprec {
inline namespace LP_ISA {

// What a counter's first word is tagged with, so that no two uses share words.
enum Tag {
    tag_rounding = 1,
    tag_rounding_wide = 2,
    tag_step = 3,
    tag_step_wide = 4,
    tag_stage = 5,
    tag_stage_wide = 6,
    tag_output = 7,
    tag_output_wide = 8,
    tag_dropout = 9,
    tag_user = 10,
    tag_fold_in = 11,
    tag_split = 12,
    tag_signs = 13
};

struct Words {
    u32 word[4];
};

LP_INLINE u32 high_product(u32 a, u32 b) {
#ifdef __CUDACC_RTC__
    return __umulhi(a, b);  // from a 64-bit product NVRTC widens the whole state to 64 bits
#else
    return u32((u64(a) * b) >> 32);
#endif
}

// One counter, one key: the definition.
template <int rounds>
LP_INLINE Words philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 key) {
    u32 k0 = u32(key), k1 = u32(key >> 32);
    for (int round = 0; round < rounds; ++round) {
        u32 next0 = high_product(0xCD9E8D57u, c2) ^ c1 ^ k0, next2 = high_product(0xD2511F53u, c0) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = next0;
        c2 = next2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

#ifdef LP_VECTOR_BYTES

// Low 32 bits times low 32 bits, per 64-bit lane. gcc does not find the instruction by itself.
LP_INLINE u64v multiply_wide(u64v a, u64v b) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    typedef i32 lanes __attribute__((vector_size(64)));
    typedef i64 wide __attribute__((vector_size(64)));
    return (u64v)__builtin_ia32_pmuludq512_mask((lanes)a, (lanes)b, wide{}, (unsigned char)-1);
#elif defined(__AVX2__) && LP_VECTOR_BYTES == 32
    typedef i32 lanes __attribute__((vector_size(32)));
    return (u64v)__builtin_ia32_pmuludq256((lanes)a, (lanes)b);
#elif defined(__SSE2__) && LP_VECTOR_BYTES == 16
    typedef i32 lanes __attribute__((vector_size(16)));
    return (u64v)__builtin_ia32_pmuludq128((lanes)a, (lanes)b);
#else
    return (a & 0xffffffffull) * (b & 0xffffffffull);
#endif
}

// Counters of one vector, one 64-bit lane each; only the low halves count.
struct Counters {
    u64v c0, c1, c2, c3;
};

LP_INLINE u64v exclusive_or(u64v a, u64v b, u64v c) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    return (u64v)__builtin_ia32_pternlogq512_mask((i64v)a, (i64v)b, (i64v)c, 0x96, (unsigned char)-1);
#else
    return a ^ b ^ c;
#endif
}

// Philox is bound by latency, so independent chains run side by side: as many as the registers hold.
static constexpr int chains = LP_VECTOR_BYTES == 64 ? 4 : 2;

template <int rounds, int count>
LP_INLINE void philox_chains(Counters *c, u64 key) {
    u32 k0 = u32(key), k1 = u32(key >> 32);
    // Made opaque so that the round keys stay two additions and are not hoisted and spilled.
    __asm__("" : "+r"(k0), "+r"(k1));
    const u64v m0 = u64v{} + 0xD2511F53u, m1 = u64v{} + 0xCD9E8D57u;
    Counters s[count];
    for (int i = 0; i < count; ++i) s[i] = c[i];
#pragma GCC unroll 10
    for (int round = 0; round < rounds; ++round) {
        const u64v v0 = u64v{} + k0, v1 = u64v{} + k1;
        for (int i = 0; i < count; ++i) {
            const u64v a = multiply_wide(s[i].c0, m0), b = multiply_wide(s[i].c2, m1);
            s[i].c0 = exclusive_or(b >> 32, s[i].c1, v0);
            s[i].c2 = exclusive_or(a >> 32, s[i].c3, v1);
            s[i].c1 = b;
            s[i].c3 = a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < count; ++i) c[i] = s[i];
}

// `count` vectors of counters become their words, in place.
template <int rounds, int count>
LP_INLINE void philox(Counters (&c)[count], u64 key) {
    constexpr int whole = count / chains * chains;
    for (int i = 0; i < whole; i += chains) philox_chains<rounds, chains>(c + i, key);
    if constexpr (whole < count) philox_chains<rounds, count - whole>(c + whole, key);
}

// The 32 words of one set of 8 counters, as `vectors` = 8 / lanes vectors of each pair of words: pair 0 then
// pair 1.
LP_INLINE u32v pair(u64v low, u64v high) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    typedef float floats __attribute__((vector_size(64)));
    return (u32v)__builtin_ia32_movsldup512_mask((floats)high, (floats)low, (unsigned short)0xaaaa);
#else
    return (u32v)((low & 0xffffffffull) | (high << 32));
#endif
}

static constexpr int lanes64 = LP_VECTOR_BYTES / 8;
static constexpr int vectors_per_block = 8 / lanes64;  // vectors that hold counters l = 0..7

LP_INLINE u64v lane_numbers(int first) {
    u64v numbers;
    for (int i = 0; i < lanes64; ++i) numbers[i] = first + i;
    return numbers;
}

// Words of `blocks` blocks from their counters' words, in element order.
template <int blocks>
LP_INLINE void in_element_order(const Counters (&c)[blocks * vectors_per_block],
                                u32v (&words)[2 * blocks * vectors_per_block]) {
    for (int b = 0; b < blocks; ++b)
        for (int v = 0; v < vectors_per_block; ++v) {
            const Counters &w = c[b * vectors_per_block + v];
            words[(2 * b) * vectors_per_block + v] = pair(w.c0, w.c1);
            words[(2 * b + 1) * vectors_per_block + v] = pair(w.c2, w.c3);
        }
}

// `blocks` consecutive blocks (64-bit block numbers from `first`) of the elementwise map: words[] in element
// order.
template <int blocks>
LP_INLINE void block_words(u64 first, int tag, u64 key, u32v (&words)[2 * blocks * vectors_per_block]) {
    constexpr int count = blocks * vectors_per_block;
    Counters c[count];
    for (int i = 0; i < count; ++i) {
        u64v counter = lane_numbers((i % vectors_per_block) * lanes64) + 8 * (first + i / vectors_per_block);
        c[i].c0 = u64v{} + (u64(tag) << 24);
        c[i].c1 = counter;
        c[i].c2 = counter >> 32;
        c[i].c3 = u64v{};
    }
    philox<10>(c, key);
    in_element_order<blocks>(c, words);
}

// Philox-10 for blocks of the elementwise map whose counters share their high word. Those counters differ in word 1
// alone, so that of the six products of the first three rounds four are the same for all: they are made here, once.
struct NearBlocks {
    u32 high;
    u32 enter;                   // round 1: word 0 is word 1 exclusive-or this
    u64 entered[8];              // round 2: the products of its three lowest bits, counter by counter
    u64 second2;                 // round 2: what word 2 is exclusive-or'ed with
    u64 third0, third2, third3;  // round 3: likewise words 0 and 2, and the whole of word 3
    u64 keys[14];                // of rounds 4 to 10
};

LP_INLINE NearBlocks near_blocks(u32 high, int tag, u64 key) {
    const u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u, c0 = u32(tag) << 24;
    u32 k0 = u32(key), k1 = u32(key >> 32);
    NearBlocks n;
    n.high = high;
    n.enter = high_product(m1, high) ^ k0;
    for (u32 l = 0; l < 8; ++l) n.entered[l] = u64(m0) * (l ^ (n.enter & 7));
    const u32 first1 = m1 * high, first2 = high_product(m0, c0) ^ k1, first3 = m0 * c0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    const u32 second0 = high_product(m1, first2) ^ first1 ^ k0, second1 = m1 * first2;
    n.second2 = first3 ^ k1;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    n.third0 = second1 ^ k0;
    n.third2 = high_product(m0, second0) ^ k1;
    n.third3 = m0 * second0;
    for (int round = 0; round < 7; ++round) {
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        n.keys[2 * round] = k0;
        n.keys[2 * round + 1] = k1;
    }
    return n;
}

// Whether the counters of all `blocks` blocks from `first` on have the high word that `n` was made for.
LP_INLINE bool are_near(const NearBlocks &n, u64 first, int blocks) {
    return u32((8 * first) >> 32) == n.high && u32((8 * (first + blocks - 1)) >> 32) == n.high;
}

// Words 0 and 1, or 2 and 3, of the last round: the product they are made of, what its high half is exclusive-or'ed
// with.
LP_INLINE u32v last_pair(u64v product, u64v before, u64v key) {
#if defined(__AVX512F__) && LP_VECTOR_BYTES == 64
    const i32v turned = (i32v)__builtin_ia32_prorq512_mask((i64v)product, 32, (i64v)product, (unsigned char)-1);
    return (u32v)__builtin_ia32_pternlogd512_mask(turned, (i32v)before, (i32v)key, 0x96, (unsigned short)0x5555);
#else
    return pair(exclusive_or(product >> 32, before, key), product);
#endif
}

// Words of vectors `from`, `from` + 1, ... of counters, of blocks of which the first has this low word; in element
// order.
template <int count>
LP_INLINE void philox_near(u32 counter, int from, const NearBlocks &near, u32v *words) {
    const u64v m0 = u64v{} + 0xD2511F53u, m1 = u64v{} + 0xCD9E8D57u;
    const NearBlocks *n = &near;
    __asm__("" : "+r"(n));  // opaque, so that the round keys are read where they are used and not kept and spilled
    Counters s[count];
    for (int i = 0; i < count; ++i) {
        const int v = from + i;
        u64 product = u64(0xD2511F53u) * u32((counter + 8 * (v / vectors_per_block)) ^ (n->enter & ~7u));
        __asm__("" : "+m"(product));  // from memory it costs less to spread than from a register
        u64v entered;
        __builtin_memcpy(&entered, n->entered + (v % vectors_per_block) * lanes64, sizeof entered);
        const u64v a = entered + product, b = multiply_wide((a >> 32) ^ n->second2, m1);
        s[i].c0 = (b >> 32) ^ n->third0;
        s[i].c1 = b;
        s[i].c2 = a ^ n->third2;
        s[i].c3 = u64v{} + n->third3;
    }
#pragma GCC unroll 10
    for (int round = 0; round < 6; ++round) {
        const u64v v0 = u64v{} + n->keys[2 * round], v1 = u64v{} + n->keys[2 * round + 1];
        for (int i = 0; i < count; ++i) {
            const u64v a = multiply_wide(s[i].c0, m0), b = multiply_wide(s[i].c2, m1);
            s[i].c0 = exclusive_or(b >> 32, s[i].c1, v0);
            s[i].c2 = exclusive_or(a >> 32, s[i].c3, v1);
            s[i].c1 = b;
            s[i].c3 = a;
        }
    }
    const u64v v0 = u64v{} + n->keys[12], v1 = u64v{} + n->keys[13];
    for (int i = 0; i < count; ++i) {
        const int v = from + i, to = 2 * vectors_per_block * (v / vectors_per_block) + v % vectors_per_block;
        words[to] = last_pair(multiply_wide(s[i].c2, m1), s[i].c1, v0);
        words[to + vectors_per_block] = last_pair(multiply_wide(s[i].c0, m0), s[i].c3, v1);
    }
}

// As above, for blocks that are near.
template <int blocks>
LP_INLINE void block_words(u64 first, const NearBlocks &near, u32v (&words)[2 * blocks * vectors_per_block]) {
    constexpr int count = blocks * vectors_per_block, together = count < chains ? count : chains;
    static_assert(count % together == 0, "whole sets of chains");
#pragma GCC unroll 8
    for (int i = 0; i < count; i += together) philox_near<together>(u32(8 * first), i, near, words);
}

#endif

}  // namespace LP_ISA
}  // namespace lowprec
#endif
