// Loops over arrays for rounding, decoding and random words, on native vectors of one instruction set.
//
// Work goes in panels of 256 elements that start at a multiple of 64 of the random index, so that a panel is
// four whole blocks of random words wherever a chunk starts. A panel that is not full is copied through
// scratch.
#include <new>
#include <optional>
#include <type_traits>

#include "isa/fast_paths.h"
#include "isa/lanes.h"
#include "isa/table.h"
#include "isa/widths.h"
#include "rounding/fast_panels.h"
#include "rounding/machine.h"
#include "rounding/piece_converter.h"
#include "rounding/random_panels.h"
#include "rounding/storage_panels.h"
#include "rounding/top_panels.h"

namespace lowprec {
inline namespace LP_ISA {
namespace {

// ---- rounding a panel ----

template <int mode, bool as_value, class E, class Out>
void round_panel(const E *from, const E *random, void *to, int count, const Rounder<E> &rounder) {
    typedef typename Vector<E>::type V;
    const Rounder<E> k = rounder;
    Out *out = static_cast<Out *>(to);
    for (int i = 0; i < count; i += Lanes<V>::count) {
        V r = mode == stochastic ? load_as<V>(random + i) : V{};
        store_as(out + i, round_bits<mode, as_value>(load_as<V>(from + i), r, k));
    }
}

template <class E>
using Panel = void (*)(const E *, const E *, void *, int, const Rounder<E> &);

template <int mode, class E>
Panel<E> panel_for_output(bool as_value, int bytes) {
    if (as_value) return round_panel<mode, true, E, E>;
    if (bytes == 1) return round_panel<mode, false, E, u8>;
    if (bytes == 2) return round_panel<mode, false, E, u16>;
    if (bytes == 4) return round_panel<mode, false, E, u32>;
    return round_panel<mode, false, E, u64>;
}

template <class E>
Panel<E> panel_for(int mode, bool as_value, int bytes) {
#define LP_CASE(m) \
    case m:        \
        return panel_for_output<m, E>(as_value, bytes);
    switch (mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
}

template <class E>
bool any_nan(const E *bits, i64 count) {
    E found = 0;
    for (i64 i = 0; i < count; ++i) found |= E((bits[i] & Carrier<E>::magnitude) > Carrier<E>::infinity);
    return found != 0;
}

// ---- the loop over panels ----

constexpr i64 in_cache = 16;  // panels that are loaded, rounded and searched for NaN together

template <class E>
struct PanelConverter {
    const ConvertJob &job;
    Rounder<E> rounder, carrier;
    Decoder<E> source;
    Panel<E> round, recode;  // recode: values into the codes of x's own dtype, exact
    FastRounder fast_rounder;
    FastPanel fast;  // for full panels of float32 in the common cases, else null
    TopRounder top;  // for some of these
    RandomBlocks random;
    int out_bytes;
    bool direct_in, direct_out, refuses_nan;

    PanelConverter(const ConvertJob &j, i64 begin) : job(j) {
        out_bytes = bytes_of(job.out);
        bool coded_out = job.out <= coded64;
        rounder = make_rounder<E>(job.rounding, job.as_value);
        source = make_decoder<E>(job.source);
        round = panel_for<E>(job.rounding.mode, job.as_value, out_bytes);
        recode = nullptr;
        if (job.as_value && coded_out) {
            carrier = make_rounder<E>(job.carrier, false);
            recode = panel_for<E>(nearest_even, false, out_bytes);
        }
        direct_in = job.in == (sizeof(E) == 4 ? real32 : real64);
        direct_out = !job.as_value || (!coded_out && out_bytes == int(sizeof(E)));
        refuses_nan = job.rounding.format.nan_code == ~0ull;
        fast = nullptr;
        top = {};
        random = random_blocks(job.key, (job.offset + u64(begin)) >> 6);
        if constexpr (sizeof(E) == 4) {
            if (!direct_out) return;
            fast_rounder = make_fast_rounder(job.rounding, job.as_value);
            if (takes(FastPath::fast_panels))
                fast = fast_panel(fast_rounder, job.rounding.mode, job.as_value, out_bytes);
            if (!job.as_value && takes(FastPath::top_panels))
                top = make_top_rounder(job.rounding, fast_rounder, fast, out_bytes);
        }
    }

    bool takes_kept() const { return job.rounding.mode == stochastic && fast && (!top.run || out_bytes == 2); }

    // Whole panels by a short cut, which takes float32 values. True where a NaN met a format that has none.
    bool convert_fast(i64 begin, i64 panels) const {
        if (direct_in) return round_fast(reinterpret_cast<const u32 *>(job.from) + begin, begin, panels);
        alignas(64) E in[in_cache * panel];
        load_panel<E>(job, source, begin, int(panels * panel), in);
        return round_fast(reinterpret_cast<const u32 *>(in), begin, panels);
    }

    bool round_fast(const u32 *from, i64 begin, i64 panels) const {
        char *to = static_cast<char *>(job.to) + begin * out_bytes;
        const u64 block = (job.offset + u64(begin)) >> 6;
        if (top.run) {
            const bool plain = top.run(from, to, panels, block, random, top);
            return !plain && refuses_nan && any_nan(from, panels * panel);
        }
        for (i64 i = 0; i < panels; ++i) {
            PanelWords words;
            if (job.rounding.mode == stochastic) random.fill(block + 4 * i, words);
            fast(from + i * panel, words, to + i * panel * out_bytes, fast_rounder);
        }
        return refuses_nan && any_nan(from, panels * panel);
    }

    // `count` elements from `begin`; `lead` lanes before them belong to indices that are not asked for.
    bool convert(i64 begin, int lead, int count) const {
        alignas(64) E in[panel], values[panel], random[panel];
        alignas(64) u64 narrow[panel];
        const bool full = count == panel;
        const int lanes = (lead + count + 15) & ~15;
        const E *from = in;
        if (direct_in && full)
            from = static_cast<const E *>(job.from) + begin;
        else
            fetch(begin, lead, count, lanes, in);
        bool bad = refuses_nan && any_nan(from + lead, count);
        if (job.rounding.mode == stochastic)
            random_panel(job.offset + u64(begin) - u64(lead), job.rounding.random_bits, job.key, random);
        char *to = static_cast<char *>(job.to) + begin * out_bytes;
        if (direct_out) {
            round(from, random, full ? static_cast<void *>(to) : narrow, lanes, rounder);
            if (!full) __builtin_memcpy(to, reinterpret_cast<char *>(narrow) + lead * out_bytes, count * out_bytes);
            return bad;
        }
        round(from, random, values, lanes, rounder);
        if (recode) {
            recode(values, random, narrow, lanes, carrier);
            __builtin_memcpy(to, reinterpret_cast<char *>(narrow) + lead * out_bytes, count * out_bytes);
        } else {
            for (int i = 0; i < count; ++i)  // float64 bits of values that float32 holds
                reinterpret_cast<float *>(to)[i] = float(bit_cast<typename Lanes<E>::real>(values[lead + i]));
        }
        return bad;
    }

    void fetch(i64 begin, int lead, int count, int lanes, E *in) const {
        for (int i = 0; i < lead; ++i) in[i] = 0;
        load_panel<E>(job, source, begin, count, in + lead);
        for (int i = lead + count; i < lanes; ++i) in[i] = 0;
    }
};

template <class E>
bool convert_panels(const PanelConverter<E> &converter, i64 begin, i64 end) {
    bool bad = false;
    while (begin < end) {
        const int lead = int((converter.job.offset + u64(begin)) & 63);
        if (converter.fast && lead == 0 && end - begin >= panel) {
            const i64 whole = (end - begin) / panel, panels = whole < in_cache ? whole : in_cache;
            bad |= converter.convert_fast(begin, panels);
            begin += panels * panel;
            continue;
        }
        const int count = int(end - begin < panel - lead ? end - begin : panel - lead);
        bad |= converter.convert(begin, lead, count);
        begin += count;
    }
    return bad;
}

// ---- 64-bit integers: up to 64 significant bits, so they enter below the carrier ----

u64 round_integer_in(int mode, u64 magnitude, u64 negative, u64 random, const Rounder<u64> &k) {
#define LP_CASE(m) \
    case m:        \
        return round_integer<m>(magnitude, negative, random, k);
    switch (mode) { LP_MODES(LP_CASE) }
#undef LP_CASE
    __builtin_unreachable();
}

bool convert_integers(const ConvertJob &job, i64 begin, i64 end) {
    const Rounder<u64> k = make_rounder<u64>(job.rounding, false);
    const int bytes = bytes_of(job.out);
    alignas(64) u64 random[panel] = {};
    while (begin < end) {
        u64 index = job.offset + u64(begin);
        int lead = int(index & 63), count = int(end - begin < panel - lead ? end - begin : panel - lead);
        if (job.rounding.mode == stochastic) random_panel(index - u64(lead), job.rounding.random_bits, job.key, random);
        for (int i = 0; i < count; ++i) {
            i64 x = static_cast<const i64 *>(job.from)[begin + i];
            u64 negative = job.in == int64s && x < 0;
            u64 code =
                round_integer_in(job.rounding.mode, negative ? 0 - u64(x) : u64(x), negative, random[lead + i], k);
            __builtin_memcpy(static_cast<char *>(job.to) + (begin + i) * bytes, &code,
                             bytes);  // little-endian
        }
        begin += count;
    }
    return false;
}

bool convert(const ConvertJob &job, i64 begin, i64 end) {
    if (job.in == int64s || job.in == uint64s) return convert_integers(job, begin, end);
    if (takes(FastPath::machine_conversions) && convert_by_machine(job, begin, end)) return false;
    if (job.wide) return convert_panels<u64>({job, begin}, begin, end);
    return convert_panels<u32>({job, begin}, begin, end);
}

// ---- decoding ----

template <class E, class Real>
void decode_into(const DecodeJob &job, i64 begin, i64 end) {
    const Decoder<E> d = make_decoder<E>(job.format);
    Real *to = static_cast<Real *>(job.to);
    for (i64 i = begin; i < end; i += panel) {
        alignas(64) E bits[panel];
        int count = int(end - i < panel ? end - i : panel);
        E *target = sizeof(E) == sizeof(Real) ? reinterpret_cast<E *>(to + i) : bits;
        if (job.in == coded8) load_codes<E, u8>(job.from, i, count, target, d);
        if (job.in == coded16) load_codes<E, u16>(job.from, i, count, target, d);
        if (job.in == coded32) load_codes<E, u32>(job.from, i, count, target, d);
        if (job.in == coded64) load_codes<E, u64>(job.from, i, count, target, d);
        if (sizeof(E) != sizeof(Real))
            for (int j = 0; j < count; ++j) to[i + j] = Real(bit_cast<typename Lanes<E>::real>(bits[j]));
    }
}

void decode(const DecodeJob &job, i64 begin, i64 end) {
    if (takes(FastPath::machine_conversions) && decode_by_machine(job, begin, end)) return;
    if (job.out == real64) return decode_into<u64, double>(job, begin, end);
    if (job.format.emin < -126) return decode_into<u64, float>(job, begin, end);
    decode_into<u32, float>(job, begin, end);
}

// ---- random words as arrays ----

template <class Out>
void random_into(const RandomJob &job, i64 begin, i64 end) {
    Out *to = static_cast<Out *>(job.to);
    while (begin < end) {
        alignas(64) u32 random[panel];
        u64 index = job.offset + u64(begin);
        int lead = int(index & 63), count = int(end - begin < panel - lead ? end - begin : panel - lead);
        index -= u64(lead);
        if (job.bits <= 16)
            random_half_words(index >> 6, job.tag, job.key, random);
        else
            random_whole_words(index >> 5, job.tag, job.key, random);
        int width = job.bits <= 16 ? 16 : 32;
        for (int i = 0; i < count; ++i) to[begin + i] = Out(random[lead + i] >> (width - job.bits));
        begin += count;
    }
}

void random_words(const RandomJob &job, i64 begin, i64 end) {
    if (job.bits <= 16) return random_into<u16>(job, begin, end);
    random_into<u32>(job, begin, end);
}

}  // namespace

// ---- pieces ----

constexpr int most_kept = 4;  // panels

struct PieceConverter::Prepared {
    bool by_machine;
    std::optional<PanelConverter<u32>> narrow;
    std::optional<PanelConverter<u64>> wide;
    alignas(64) PanelWords kept[most_kept];
};

PieceConverter::PieceConverter(const ConvertJob &j) : job(j), prepared(new (room) Prepared) {
    static_assert(sizeof(Prepared) <= sizeof room && std::is_trivially_destructible_v<Prepared>);
    prepared->by_machine = takes(FastPath::machine_conversions) && machine_way(job) != MachineWay::none;
    if (prepared->by_machine) return;
    if (job.wide)
        prepared->wide.emplace(job, 0);
    else
        prepared->narrow.emplace(job, 0);
}

bool PieceConverter::run(const void *from, void *to, u64 offset, i64 count) {
    job.from = from;
    job.to = to;
    job.offset = offset;
    if (prepared->by_machine) return !convert_by_machine(job, 0, count);
    return job.wide ? convert_panels(*prepared->wide, 0, count) : convert_panels(*prepared->narrow, 0, count);
}

void PieceConverter::keep_words(u64 offset, i64 count) {
    if (!prepared->narrow || !prepared->narrow->takes_kept() || offset % 64 != 0) return;
    RandomBlocks &random = prepared->narrow->random;
    random.kept_panels = 0;
    const i64 panels = count / panel < most_kept ? count / panel : most_kept;
    for (i64 i = 0; i < panels; ++i) random.fill(offset / 64 + 4 * i, prepared->kept[i]);
    random.kept = prepared->kept;
    random.first_kept = offset / 64;
    random.kept_panels = u64(panels);
}

extern const RoundingTable rounding_table;
const RoundingTable rounding_table = {convert, decode, random_words};

}  // namespace LP_ISA
}  // namespace lowprec
