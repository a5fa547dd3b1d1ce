// Random bits of windows of elements under the elementwise map (lowprec/random.h), drawn block by block where they are
// used.
#ifndef LOWPREC_COLUMN_WORDS_H
#define LOWPREC_COLUMN_WORDS_H

#include "lowprec/random.h"
#include "sums/terms.h"

namespace lowprec {
inline namespace LP_ISA {

// Rows of elements: neighbours in a row are `step` indices apart, and rows `stride`.
struct WordRows {
    u64 first;
    i64 rows, row, stride, step;  // rows, and elements of a row
};

// The bits of up to 64 rows of 64 elements, at the top of 32, one word or more per element. Neighbouring rows that
// share a block of the map share what is drawn.
class ColumnWords {
  public:
    ColumnWords(int bits, u64 from_key)
        : key(from_key),
          shift(bits <= 16 ? 6 : 5),
          room(bits <= 16 ? 128 : 192),
          tag(bits <= 16 ? tag_rounding : tag_rounding_wide),
          keep(~u32(0) << (32 - bits)) {}

    // Word s of an element goes into line s * term_window + row of `to`, or, where rows are lanes, + number in its row.
    // No row may reach over more than 128 blocks.
    void draw(const WordRows &w, int words, u32 (*to)[term_lanes], bool rows_are_lanes) {
        i64 done = 0;
        blocks = 0;
        for (i64 row = 0; row < w.rows; ++row) {
            const u64 begin = w.first + u64(row * w.stride), end = begin + u64((w.row - 1) * w.step + words - 1);
            const i64 more = i64((end >> shift) - (begin >> shift)) + 1;
            if (blocks + more > room) {
                hand_out(w, done, row, words, to, rows_are_lanes);
                done = row;
                blocks = 0;
            }
            u64 block = begin >> shift;
            const bool shared = blocks && number[blocks - 1] == block;
            place[row] = ((blocks - shared) << shift) + i64(begin & ((u64(1) << shift) - 1));
            for (block += shared; block <= end >> shift; ++block) number[blocks++] = block;
        }
        hand_out(w, done, w.rows, words, to, rows_are_lanes);
    }

  private:
    static constexpr int at_once = 4;

    void hand_out(const WordRows &w, i64 begin, i64 end, int words, u32 (*to)[term_lanes], bool turned) {
        while (blocks % at_once) number[blocks++] = 0;
        for (i64 b = 0; b < blocks; b += at_once) fill(b);
        for (int s = 0; s < words; ++s, to += term_window) {
            if (!turned) {
                for (i64 t = begin; t < end; ++t) copy(drawn + place[t] + s, w.step, w.row, to[t]);
            } else if (w.step == 1) {  // `room` holds all rows of these: `begin` is 0
                for (i64 r = begin; r < end; r += lanes32) turn_rows(r, end, w.row, to);
            } else {
                for (i64 r = begin; r < end; ++r)
                    for (i64 t = 0; t < w.row; ++t) to[t][r] = drawn[place[r] + t * w.step + s];
            }
        }
    }
    static void copy(const u32 *from, i64 step, i64 count, u32 *to) {
        if (step == 1)
            __builtin_memcpy(to, from, count * 4);
        else
            for (i64 i = 0; i < count; ++i) to[i] = from[i * step];
    }
    // Rows [r, r + lanes32) become lanes; only shuffles, so that words may pass as floats. Whole vectors are written.
    void turn_rows(i64 r, i64 end, i64 terms, u32 (*to)[term_lanes]) const {
        for (i64 t = 0; t < terms; t += lanes32) {
            f32v block[lanes32];
            for (int i = 0; i < lanes32; ++i) block[i] = r + i < end ? load<f32v>(drawn + place[r + i] + t) : f32v{};
            turn<1>(block);
            for (int i = 0; i < lanes32; ++i) store(&to[t + i][r], block[i]);
        }
    }

    // Words of four blocks of the map.
    void fill(i64 b) {
        constexpr int count = at_once * vectors_per_block;
        Counters c[count];
        for (int i = 0; i < count; ++i) {
            const u64v counter = lane_numbers(i % vectors_per_block * lanes64) + 8 * number[b + i / vectors_per_block];
            c[i].c0 = u64v{} + (u64(tag) << 24);
            c[i].c1 = counter;
            c[i].c2 = counter >> 32;
            c[i].c3 = u64v{};
        }
        philox<10>(c, key);
        u32v words[2 * count];
        in_element_order<at_once>(c, words);
        u32 *to = drawn + (b << shift);
        for (int pair = 0; pair < 2 * at_once; ++pair)
            for (int half = 0; half < (shift == 6 ? 2 : 1); ++half)
                for (int v = 0; v < vectors_per_block; ++v, to += lanes32) {
                    const u32v w = words[pair * vectors_per_block + v];
                    store(to, (shift == 6 && half == 0 ? w << 16 : w) & keep);
                }
    }

    const u64 key;
    const int shift;  // a block has 2^shift elements
    const i64 room;   // blocks that are held
    const int tag;
    const u32 keep;
    i64 blocks = 0;
    u64 number[192 + at_once];
    i64 place[term_window];                              // of a row's first element in `drawn`
    alignas(64) u32 drawn[128 * 64 + 4 * 64 + lanes32];  // a vector may be read beyond the last
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
