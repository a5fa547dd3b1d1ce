// Products: operands are packed into panels, register tiles run over the whole of each part, sums are finished in
// cache.
//
// Nothing here decides a bit: which tile, panel, thread or instruction set computes an element never matters.
#include "accumulate/finish.h"
#include "isa/fast_paths.h"
#include "product/left_operand.h"
#include "product/panel.h"
#include "product/tile_kernels.h"
#include "product/vertex.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

// Packed right operand at a time: 4 MiB, which last-level caches keep while it is read for every block of rows; but the
// left operand is decoded anew each time, so a few panels even if they are long, up to 16 MiB.
constexpr i64 panel_floats = i64(1) << 20, panel_floats_limit = i64(1) << 22, few_panels = 4;
constexpr i64 block_floats_limit = i64(1) << 17;  // decoded left operand at a time, 512 KiB

thread_local Scratch left_scratch, right_scratch;

class Product {
  public:
    Product(const ProductJob &j, const Region &r)
        : job(j),
          region(r),
          step(j.step),
          final(j.final),
          keep(j.out),
          path(path_of(j.step)),
          parts(j.k ? (j.k + j.part - 1) / j.part : 0),
          stages{parts, j.run, j.stages},
          random(draws_words(j)),
          left_operand(j, left_scratch) {
        chain.group = job.group;
        chain.part = job.part;
        chain.count = job.k;
        chain.alignment = job.alignment;
        chain.stages = stages;
        chain.whole_words = step.whole_words();
        const i64 rows = region.row_end - region.row_begin, columns = region.column_end - region.column_begin;
        // Looking for the largest product pays where every number is used often, or sums are rounded often.
        const i64 least = job.group < 8 ? 16 : 32;
        const bool often = bounds_pay && takes(FastPath::bounded_sums) && rows >= least && columns >= least;
        if (often && path == Path::half_nearest && job.group == 1) path = Path::half_bounded;
        sized = often && (path == Path::half_bounded || path == Path::grid_stochastic);
        chain.largest_product = __builtin_inff();
    }

    void run() {
        each_vertex(job, region, [&](const Vertex &v) { vertex(v); });
    }

  private:
    void vertex(const Vertex &v) {
        out = v.out;
        initial = v.initial;
        place.key = job.key;
        place.head = (u32(tag_step + (chain.whole_words ? 1 : 0)) << 24) | v.batch;
        row0 = v.row;
        column0 = v.column;
        group0 = v.group;
        chain.first_group = group0;
        const i64 skip = random ? column0 % lanes32 : 0, columns = region.column_end - region.column_begin;
        const i64 all = skip + columns;
        i64 panels = panel_floats / ((job.k + 1) * tile_columns);
        if (panels < few_panels) panels = smaller(few_panels, panel_floats_limit / ((job.k + 1) * tile_columns));
        if (panels < 1) panels = 1;
        for (i64 at = 0; at < all; at += panels * tile_columns) {
            const i64 end = at + panels * tile_columns < all ? at + panels * tile_columns : all;
            pack_right(v.b, skip, columns, at, end, at == 0 && end == all);
            row_blocks(v.a, skip, columns, at, end);
        }
    }

    static Panel panel(i64 at, i64 end, i64 skip, i64 columns) {
        return Panel(at, skip, columns, end - at > lanes32 ? 2 : 1);
    }

    void pack_right(const char *b, i64 skip, i64 columns, i64 begin, i64 end, bool whole) {
        if (whole && b == packed_right && skip == packed_skip) return;
        packed_right = whole ? b : nullptr;
        packed_skip = skip;
        const i64 count = (end - begin + tile_columns - 1) / tile_columns;
        float *to = right_scratch.of(count * tile_columns * job.k);
        largest_right = 0;
        for (i64 at = begin; at < end; at += tile_columns) {
            const Panel p = panel(at, end, skip, columns);
            const i64 width = p.vectors * lanes32;
            const PanelShape shape = {job.k, p.skip, p.columns, width, width};
            pack_panel(job.b.element, job.b.table, b + p.first * job.b_column, job.b_k, job.b_column, shape,
                       to + (at - begin) * job.k);
            if (sized)
                largest_right = larger(largest_right, largest_of(to + (at - begin) * job.k, 1, 0, width * job.k));
        }
    }

    void row_blocks(const char *a, i64 skip, i64 columns, i64 begin, i64 end) {
        const i64 rows = region.row_end - region.row_begin;
        i64 block = block_floats_limit / (job.k + 1) / tile_rows * tile_rows;
        // Where rows lie side by side in memory, few of them would use little of every line that is read.
        const i64 fewest = left_along_k(job) ? tile_rows : 4 * tile_rows;
        if (block < fewest) block = fewest;
        for (i64 row = 0; row < rows; row += block) {
            const i64 count = rows - row < block ? rows - row : block;
            const Left left = left_operand.block(a + row * job.a_row, count, rows <= block);
            if (sized)
                chain.largest_product = bit_cast<float>(left.largest(count, job.k)) * bit_cast<float>(largest_right);
            for (i64 at = begin; at < end; at += tile_columns) {
                Panel p = panel(at, end, skip, columns);
                p.data = right_scratch.data + (at - begin) * job.k;
                strips(left, row, count, p);
            }
        }
    }

    void strips(const Left &left, i64 row, i64 rows, const Panel &p) {
        chain.a_row = left.row;
        chain.a_k = left.k;
        chain.b_k = p.vectors * lanes32;
        place.column = column0 + u32(p.first - p.skip);
        for (i64 i = 0; i < rows;) {
            const int height = first_height(rows - i);
            const Kernel kernel = chosen_kernel<Chain>(path, height, p.vectors, job.half_operands);
            for (; i + height <= rows; i += height) {
                place.row = row0 + u32(row + i);
                tile(left.data + i * left.row, left, p, row + i, height, kernel);
            }
        }
    }

    void tile(const float *a, const Left &left, const Panel &p, i64 row, int rows, Kernel run_tile) {
        alignas(64) float first[tile_floats + lanes32];
        alignas(64) TileSums sums;
        float *total = parts == 0 ? first : sums[stages.count - 1];
        chain.place = place;
        chain.start = initial ? first : p.start;
        chain.start_row = initial ? p.vectors * lanes32 : 0;
        if (initial || parts == 0) start(p, row, rows, first);
        if (parts == 0) {
        } else if (job.adder == Adder::sequential) {
            run_tile(chain, step, a, p.data, sums);
        } else {
            adder_parts(a, left, p, rows, sums);
        }
        if (final.active) round_rows(total, rows, p.vectors, final, place, tag_output, 0);
        keep.rows(total + p.skip, p.vectors * lanes32, out + row * job.out.row + p.first * job.out.column, rows,
                  p.columns);
    }

    void adder_parts(const float *a, const Left &left, const Panel &p, int rows, TileSums &sums) const {
        alignas(64) float part[tile_floats];
        Chain here = chain;
        for (i64 i = 0; i < parts; ++i) {
            const i64 begin = i * job.part;
            here.count = job.k - begin < job.part ? job.k - begin : job.part;
            here.first_group = group0 + u32(begin / job.group);
            adder_kernel(job.adder, here, step, rows, p.vectors, a + begin * left.k, p.data + begin * chain.b_k, part);
            take_part(part, sums, i, rows, p.vectors, stages, step, place);
        }
    }

    // The sums a tile's chains start from.
    void start(const Panel &p, i64 row, int rows, float *to) const {
        for (i64 i = 0; i < rows; ++i) {
            __builtin_memcpy(to + i * p.vectors * lanes32, p.start, p.vectors * lanes32 * sizeof(float));
            if (!initial) continue;
            decode_run(job.initial.element, job.initial.table,
                       initial + (row + i) * job.initial_row + p.first * job.initial_column, job.initial_column,
                       to + i * p.vectors * lanes32 + p.skip, p.columns);
        }
    }

    const ProductJob &job;
    const Region &region;
    const Rounders step, final;
    const Store keep;
    Path path;
    const i64 parts;
    const Stages stages;
    const bool random;
    LeftOperand left_operand;
    bool sized;  // steps ask how large products may be
    u32 largest_right = 0;
    Chain chain = {};
    WordPlace place = {};
    u32 row0 = 0, column0 = 0, group0 = 0;
    char *out = nullptr;
    const char *initial = nullptr;
    const char *packed_right = nullptr;
    i64 packed_skip = 0;
};

}  // namespace

bool strip_product(const ProductJob &job, const Region &region);

void product(const ProductJob &job, const Region &region) {
    if (!strip_product(job, region)) Product(job, region).run();
}

}  // namespace LP_ISA
}  // namespace lowprec
