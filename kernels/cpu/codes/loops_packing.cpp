// Packing of narrow codes: eight codes lie in a 64-bit lane and are pushed together in three steps.
#include "codes/packing_job.h"
#include "isa/table.h"
#include "isa/widths.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

// Fields of a lane: in step s, pairs of fields of bits * 2^s lie in every 8 * 2^(s + 1) bits, apart or together.
struct Fields {
    int gap;              // unused bits of a byte
    u64 low[3];           // the lower field of every pair
    u64 apart, whole[3];  // all codes; both fields of every pair, together

    explicit Fields(int bits) : gap(8 - bits), apart(repeated((1u << bits) - 1, 8)) {
        for (int step = 0; step < 3; ++step) {
            const u64 field = (1ull << (bits << step)) - 1;
            low[step] = repeated(field, 16 << step);
            whole[step] = low[step] | low[step] << (bits << step);
        }
    }

    static u64 repeated(u64 field, int every) {
        u64 mask = 0;
        for (int at = 0; at < 64; at += every) mask |= field << at;
        return mask;
    }
};

template <class L>
LP_INLINE L push_together(L x, const Fields &f) {
    for (int step = 0; step < 3; ++step)
        x = (x & f.low[step]) | ((x >> (f.gap << step)) & (f.whole[step] & ~f.low[step]));
    return x;
}

template <class L>
LP_INLINE L pull_apart(L x, const Fields &f) {
    x &= f.whole[2];
    for (int step = 2; step >= 0; --step) {
        const L low = x & f.low[step];
        x = low | ((x ^ low) << (f.gap << step));
    }
    return x;
}

// Sixteen codes lie in two lanes; a shuffle of bytes closes the gap between them, or opens it.
typedef u64 Lanes2 __attribute__((vector_size(16)));
typedef u8 Bytes16 __attribute__((vector_size(16)));

template <int bits>
LP_INLINE Bytes16 closed(Bytes16 x) {
    Bytes16 order;
    for (int i = 0; i < 16; ++i) order[i] = u8(i < bits ? i : i < 2 * bits ? 8 + i - bits : 7);
    return __builtin_shuffle(x, order);  // byte 7 is empty
}

template <int bits>
LP_INLINE Bytes16 opened(Bytes16 x) {
    Bytes16 order;
    for (int i = 0; i < 16; ++i) order[i] = u8(i % 8 < bits ? i / 8 * bits + i % 8 : 0);
    return __builtin_shuffle(x, order);
}

template <int bits>
bool pack_row(const u8 *from, u8 *to, i64 count) {
    const Fields fields(bits);
    Lanes2 wrong = {};
    i64 i = 0;
    // Sixteen bytes are written, of which the upper ones are written again by the next: not at the end, where one bit
    // a code would reach 128 codes further.
    for (; i + 144 <= count; i += 16) {
        Lanes2 x;
        __builtin_memcpy(&x, from + i, sizeof x);
        wrong |= x;
        const Bytes16 bytes = closed<bits>((Bytes16)push_together(x, fields));
        __builtin_memcpy(to + i / 8 * bits, &bytes, sizeof bytes);
    }
    u64 any = wrong[0] | wrong[1];
    for (; i < count; i += 8) {
        const int some = int(count - i < 8 ? count - i : 8);
        u64 x = 0;
        __builtin_memcpy(&x, from + i, some);
        any |= x;
        x = push_together(x, fields);
        __builtin_memcpy(to + i / 8 * bits, &x, (some * bits + 7) / 8);
    }
    return (any & ~fields.apart) != 0;
}

template <int bits>
void unpack_row(const u8 *from, u8 *to, i64 count) {
    const Fields fields(bits);
    i64 i = 0;
    for (; i + 144 <= count; i += 16) {  // sixteen bytes are read, for one bit a code those of 128 codes
        Bytes16 bytes;
        __builtin_memcpy(&bytes, from + i / 8 * bits, sizeof bytes);
        const Lanes2 x = pull_apart((Lanes2)opened<bits>(bytes), fields);
        __builtin_memcpy(to + i, &x, sizeof x);
    }
    for (; i < count; i += 8) {
        const int some = int(count - i < 8 ? count - i : 8);
        u64 x = 0;
        __builtin_memcpy(&x, from + i / 8 * bits, (some * bits + 7) / 8);
        x = pull_apart(x, fields);
        __builtin_memcpy(to + i, &x, some);
    }
}

// ---- four bits: two codes are one byte, without gaps between lanes ----

template <>
bool pack_row<4>(const u8 *from, u8 *to, i64 count) {
    constexpr int half = LP_VECTOR_BYTES / 2;
    typedef typename VectorOf<u16, half>::type Pairs;
    Pairs wrong = {};
    u16 any = 0;
    i64 i = 0;
    for (; i + 2 * half <= count; i += 2 * half) {
        Pairs x;
        __builtin_memcpy(&x, from + i, sizeof x);
        wrong |= x;
        const auto packed = __builtin_convertvector((x | (x >> 4)) & 0xff, typename VectorOf<u8, half>::type);
        __builtin_memcpy(to + i / 2, &packed, sizeof packed);
    }
    for (int lane = 0; lane < half; ++lane) any |= wrong[lane];
    for (; i < count; i += 2) {
        const u8 low = from[i], high = i + 1 < count ? from[i + 1] : 0;
        any |= low | high;
        to[i / 2] = u8(low | (high << 4));
    }
    return (any & 0xf0f0) != 0;
}

template <>
void unpack_row<4>(const u8 *from, u8 *to, i64 count) {
    constexpr int half = LP_VECTOR_BYTES / 2;
    typedef typename VectorOf<u8, half>::type Bytes;
    typedef typename VectorOf<u16, half>::type Pairs;
    i64 i = 0;
    for (; i + 2 * half <= count; i += 2 * half) {
        Bytes b;
        __builtin_memcpy(&b, from + i / 2, sizeof b);
        const Pairs wide = __builtin_convertvector(b, Pairs), x = (wide | (wide << 4)) & 0x0f0f;
        __builtin_memcpy(to + i, &x, sizeof x);
    }
    for (; i < count; ++i) to[i] = (from[i / 2] >> (i % 2 * 4)) & 15;
}

// ---- any width ----

bool pack(const PackingJob &job, i64 row, i64 begin, i64 end) {
    const u8 *from = job.from + row * job.codes + begin;
    u8 *to = job.to + row * job.bytes + begin / 8 * job.bits;
    switch (job.bits) {
        case 1:
            return pack_row<1>(from, to, end - begin);
        case 2:
            return pack_row<2>(from, to, end - begin);
        case 3:
            return pack_row<3>(from, to, end - begin);
        case 4:
            return pack_row<4>(from, to, end - begin);
        case 5:
            return pack_row<5>(from, to, end - begin);
        case 6:
            return pack_row<6>(from, to, end - begin);
        case 7:
            return pack_row<7>(from, to, end - begin);
        default:
            __builtin_memcpy(to, from, end - begin);
            return false;
    }
}

void unpack(const PackingJob &job, i64 row, i64 begin, i64 end) {
    const u8 *from = job.from + row * job.bytes + begin / 8 * job.bits;
    u8 *to = job.to + row * job.codes + begin;
    switch (job.bits) {
        case 1:
            return unpack_row<1>(from, to, end - begin);
        case 2:
            return unpack_row<2>(from, to, end - begin);
        case 3:
            return unpack_row<3>(from, to, end - begin);
        case 4:
            return unpack_row<4>(from, to, end - begin);
        case 5:
            return unpack_row<5>(from, to, end - begin);
        case 6:
            return unpack_row<6>(from, to, end - begin);
        case 7:
            return unpack_row<7>(from, to, end - begin);
        default:
            __builtin_memcpy(to, from, end - begin);
    }
}

}  // namespace

extern const PackingTable packing_table;
const PackingTable packing_table = {pack, unpack};

}  // namespace LP_ISA
}  // namespace lowprec
