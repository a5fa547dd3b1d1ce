// Prints a digest of what the CPU loops compute, one line per family: the same on every processor and instruction set.
//
// Links the loops of one instruction set (LP_ISA) without Python, so that it also runs under an emulator.
#include <cstdio>
#include <cstring>
#include <vector>

#include "elementwise/elementwise_job.h"
#include "isa/table.h"
#include "lowprec/random.h"
#include "product/product_job.h"

namespace lowprec {
namespace LP_ISA {
extern const Table table;
}
}  // namespace lowprec

using namespace lowprec;

namespace {

constexpr u64 key = 0x0123456789abcdefull;

// FNV-1a of 64 bits.
struct Digest {
    u64 state = 0xcbf29ce484222325ull;

    void add(const void *data, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) {
            state ^= static_cast<const unsigned char *>(data)[i];
            state *= 0x100000001b3ull;
        }
    }
    template <class T>
    void add(const std::vector<T> &values) {
        add(values.data(), values.size() * sizeof(T));
    }
    void print(const char *family) const { std::printf("%s %016llx\n", family, state); }
};

// Words that depend on nothing but their number.
u32 word(u64 i) { return philox<10>(u32(tag_user) << 24, u32(i), u32(i >> 32), 0, key).word[0]; }

std::vector<float> any_floats(size_t count) {
    std::vector<float> x(count);
    for (size_t i = 0; i < count; ++i) {
        u32 bits = word(i);
        std::memcpy(&x[i], &bits, 4);
    }
    return x;
}

// Between -4 and 4, a third of them with few bits, so that ties occur.
std::vector<float> tame_floats(size_t count) {
    std::vector<float> x(count);
    for (size_t i = 0; i < count; ++i) {
        i32 bits = i32(word(i + 1000000));
        x[i] = float(i % 3 ? bits >> 8 : bits >> 22) * (i % 3 ? 0x1p-21f : 0x1p-7f);
    }
    return x;
}

enum Nan { ieee, top, negative_zero };

Format make_format(int exponent_bits, int mantissa_bits, int bias, Nan nan) {
    Format f = {exponent_bits, mantissa_bits, 1 - bias, 1, 1, nan != negative_zero, 0, 0, 0, 0};
    const u64 last = (1ull << (exponent_bits + mantissa_bits)) - 1;
    f.sign_bit = last + 1;
    f.max_code = nan == ieee ? last - (1ull << mantissa_bits) : nan == top ? last - 1 : last;
    f.inf_code = nan == ieee ? f.max_code + 1 : 0;
    f.nan_code = nan == ieee ? f.inf_code | 1ull << (mantissa_bits - 1) : nan == top ? last : f.sign_bit;
    return f;
}

Rounding make_rounding(const Format &f, int mode, int bits, bool saturate) {
    const u64 over = saturate ? f.max_code : f.inf_code ? f.inf_code : f.nan_code;
    const u64 over_neg = over == f.nan_code ? over : over | f.sign_bit;
    return {f, mode, bits, 0, over, over_neg, over, over_neg, 0, 0};
}

const Format formats[] = {make_format(5, 10, 15, ieee), make_format(8, 7, 127, ieee), make_format(4, 3, 7, top),
                          make_format(5, 2, 16, negative_zero), make_format(6, 9, 31, ieee)};
const Format single = make_format(8, 23, 127, ieee);

ConvertJob conversion(const Rounding &rounding, const void *from, void *to, bool wide) {
    return {rounding, single, make_rounding(single, nearest_even, 0, false), real32, coded16, 0, wide, key, 13,
            from,     to};
}

void rounding() {
    const std::vector<float> x = any_floats(3001), y = tame_floats(3001);
    std::vector<u16> codes(3001);
    Digest digest;
    for (const Format &f : formats)
        for (int mode = 0; mode < mode_count; ++mode)
            for (int bits : {1, 7, 16, 17, 32}) {
                if (mode != stochastic && bits > 1) continue;
                for (const auto *from : {&x, &y})
                    for (int wide = bits > 16; wide < 2; ++wide) {
                        const Rounding r = make_rounding(f, mode, bits, wide);
                        const ConvertJob job = conversion(r, from->data(), codes.data(), wide);
                        LP_ISA::table.rounding->convert(job, 0, 3001);
                        digest.add(codes);
                    }
            }
    digest.print("rounding");
}

void decoding() {
    Digest digest;
    for (const Format &f : formats) {
        std::vector<u16> codes(1u << (1 + f.exponent_bits + f.mantissa_bits));
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = u16(i);
        std::vector<float> narrow(codes.size());
        std::vector<double> wide(codes.size());
        LP_ISA::table.rounding->decode({f, coded16, real32, codes.data(), narrow.data()}, 0, i64(codes.size()));
        LP_ISA::table.rounding->decode({f, coded16, real64, codes.data(), wide.data()}, 0, i64(codes.size()));
        digest.add(narrow);
        digest.add(wide);
    }
    digest.print("decoding");
}

void random_words() {
    Digest digest;
    std::vector<u32> words(1001);
    for (int tag : {tag_rounding, tag_dropout, tag_user})
        for (int bits : {17, 24, 32}) {
            LP_ISA::table.rounding->random({tag + 1, bits, key, 77, words.data()}, 0, 1001);
            digest.add(words);
        }
    std::vector<u16> halves(1001);
    for (int bits : {1, 5, 16}) {
        LP_ISA::table.rounding->random({tag_user, bits, key, 77, halves.data()}, 0, 1001);
        digest.add(halves);
    }
    digest.print("random");
}

Operand floats(const std::vector<float> &x, long stride) {
    Operand o = {reinterpret_cast<const char *>(x.data()), nullptr, Element::real32, {}};
    o.stride[0] = stride;
    return o;
}

// NaNs are compared as NaN: which one an operation returns is the processor's choice.
void add_values(Digest &digest, std::vector<float> &values) {
    for (float &v : values)
        if (v != v) v = __builtin_nanf("");
    digest.add(values);
}

void elementwise() {
    constexpr int operations = 28;  // of LP_OPERATIONS
    std::vector<float> y(2003);
    for (const bool any : {false, true}) {
        const std::vector<float> x = any ? any_floats(2009) : tame_floats(2009);
        const std::vector<float> b(x.begin() + 3, x.end()), c(x.begin() + 5, x.end());
        Digest digest;
        for (int operation = 0; operation < operations; ++operation) {
            const Operand operands[3] = {floats(x, 4), floats(b, 4), floats(c, 4)};
            ElementwiseJob job = {};
            job.operation = operation;
            job.operands = 3;
            job.axes = 1;
            job.shape[0] = 2003;
            for (int i = 0; i < 3; ++i) job.operand[i] = operands[i];
            job.out.to = y.data();
            job.item_bytes = 4;
            job.plain = 1;
            LP_ISA::table.elementwise->run(job, 0, 2003);
            add_values(digest, y);
        }
        digest.print(any ? "elementwise-any" : "elementwise-tame");
    }
}

void products() {
    constexpr i64 m = 21, k = 150, n = 37;
    const std::vector<float> a = tame_floats(m * k), b = tame_floats(k * n);
    std::vector<u16> y(m * n);
    Digest digest;
    for (const int mode : {int(nearest_even), int(stochastic)})
        for (const Adder adder : {Adder::sequential, Adder::dot4, Adder::pairwise})
            for (const i64 group : {1, 16, 150})
                for (const i64 part : {64, 160}) {
                    const Rounding r = make_rounding(formats[0], mode, 16, true);
                    ProductJob job = {};
                    job.a = floats(a, 0);
                    job.b = floats(b, 0);
                    job.a_row = 4 * k;
                    job.a_k = 4;
                    job.b_k = 4 * n;
                    job.b_column = 4;
                    job.row.base = 5;
                    job.out = {make_rounding(formats[0], nearest_even, 0, true),
                               coded16,
                               2,
                               reinterpret_cast<char *>(y.data()),
                               {},
                               2 * n,
                               2};
                    job.step = job.final = {r, 1, 0};
                    job.adder = adder;
                    job.group = group;
                    job.part = (part + group - 1) / group * group;
                    job.stages = 1;
                    job.run = (k + job.part - 1) / job.part;
                    job.key = key;
                    job.m = m;
                    job.n = n;
                    job.k = k;
                    LP_ISA::table.sums->product(job, {0, 1, 0, m, 0, n});
                    digest.add(y);
                }
    digest.print("products");
}

}  // namespace

int main() {
    rounding();
    decoding();
    random_words();
    elementwise();
    products();
}
