// Products of few rows, or of few columns, which are rows of the turned product: the wide operand is read once, in
// pieces that stay in the first cache, and sums are carried from piece to piece.
#include "accumulate/finish.h"
#include "isa/fast_paths.h"
#include "product/left_operand.h"
#include "product/panel.h"
#include "product/tile_kernels.h"
#include "product/vertex.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 piece_floats = i64(1) << 12;  // packed at a time: 16 KiB
constexpr i64 most_rows = 16;

#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
constexpr bool has_turned_codes = true;
#else
constexpr bool has_turned_codes = false;
#endif

thread_local Scratch left_scratch, right_scratch;

// The product whose rows are this one's columns.
ProductJob turned_job(const ProductJob &job) {
    ProductJob t = job;
    t.a = job.b, t.b = job.a;
    t.a_row = job.b_column, t.a_k = job.b_k, t.b_k = job.a_k, t.b_column = job.a_row;
    t.out.row = job.out.column, t.out.column = job.out.row;
    t.row = job.column, t.column = job.row;
    t.m = job.n, t.n = job.m;
    return t;
}

// C: whose random words.
template <class C>
class Strip {
  public:
    Strip(const ProductJob &j, const Region &r, bool is_turned)
        : job(j),
          region(r),
          turned(is_turned),
          step(j.step),
          keep(j.out),
          path(path_of(j.step)),
          rows(r.row_end - r.row_begin),
          columns(r.column_end - r.column_begin),
          left(j, left_scratch) {
        chain.group = job.group;
        chain.alignment = job.alignment;
        chain.stages = {1, 1, 1};
        chain.whole_words = step.whole_words();
        chain.largest_product = __builtin_inff();
        const i64 group = job.group < job.k ? job.group : job.k;
        const i64 unit = step.active ? 4 * group : lanes32;  // neighbouring groups share random words
        const i64 pieces = piece_floats / (most_vectors * lanes32 * unit);
        piece = unit * (pieces > 1 ? pieces : 1);
        if (piece > job.k) piece = job.k;
    }

    void run() {
        each_vertex(job, region, [&](const Vertex &v) { vertex(v); });
    }

  private:
    struct Tile {
        i64 row;
        int rows;
        KernelOf<C> kernel;
        KernelOf<HalfLanes<C>> half_kernel;
    };

    void vertex(const Vertex &v) {
        place.key = job.key;
        place.head = (u32(tag_step + (chain.whole_words ? 1 : 0)) << 24) | v.batch;
        const Left decoded = left.block(v.a, rows, true);
        chain.a_row = decoded.row;
        chain.a_k = decoded.k;
        const i64 skip = turned ? 0 : v.column % lanes32, all = skip + columns;
        for (i64 at = 0; at < all;) {
            const i64 lanes = all - at;
            const bool most = rows == 1 && lanes > (most_vectors - 1) * lanes32;
            const int vectors = lanes <= lanes32 ? 1 : most ? most_vectors : 2;
            panel(v, decoded, Panel(at, skip, columns, vectors));
            at += vectors * lanes32;
        }
    }

    // How a panel is read: as it lies in memory, as float16 that is turned, or decoded.
    enum class Way { in_place, turned_codes, decoded };

    Way way_of(const Panel &p) const {
        if (job.b.element != Element::half || !has_half_kernel(path)) return Way::decoded;
        if (turned && is_random(job.step) && !has_turned_codes) return Way::decoded;
        if (job.b_column == 2 && job.b_k % 2 == 0 && p.skip == 0 && p.columns == p.vectors * lanes32)
            return Way::in_place;
        return has_turned_codes && job.b_k == 2 ? Way::turned_codes : Way::decoded;
    }

    // The next chain.count products' part of a panel, from `from` on.
    const float *lanes(Way way, const char *from, const Panel &p) const {
        if (way == Way::in_place) return reinterpret_cast<const float *>(from);
        const i64 width = p.vectors * lanes32;
        float *to = right_scratch.of(chain.count * width);
        const PanelShape shape = {chain.count, p.skip, p.columns, width, width};
#if defined(__AVX512BW__) && LP_VECTOR_BYTES == 64
        if (way == Way::turned_codes) {
            pack_columns16<Element::half>(from, job.b_column, shape, reinterpret_cast<u16 *>(to));
            return to;
        }
#endif
        pack_panel(job.b.element, job.b.table, from, job.b_k, job.b_column, shape, to);
        return to;
    }

    void panel(const Vertex &v, const Left &decoded, const Panel &p) {
        Tile tiles[5];
        alignas(64) float sums[most_rows * tile_columns + sizeof(TileSums) / sizeof(float)];
        const int count = cut(p.vectors, tiles);
        const i64 width = p.vectors * lanes32;
        const Way way = way_of(p);
        const i64 most = way == Way::decoded ? piece : way == Way::in_place && count == 1 ? job.k : 2 * piece;
        chain.b_k = way == Way::in_place ? job.b_k / 2 : width;
        for (i64 k = 0; k < job.k; k += most) {
            chain.part = chain.count = job.k - k < most ? job.k - k : most;
            chain.first_group = v.group + u32(k / job.group);
            const float *b = lanes(way, v.b + p.first * job.b_column + k * job.b_k, p);
            for (int t = 0; t < count; ++t) {
                Tile &tile = tiles[t];
                float *to = sums + tile.row * width;
                chain.start = k == 0 ? p.start : to;
                chain.start_row = k == 0 ? 0 : width;
                const u32 row = v.row + u32(tile.row), column = v.column + u32(p.first - p.skip);
                chain.place = place;
                chain.place.row = turned ? column : row;
                chain.place.column = turned ? row : column;
                const float *a = decoded.data + tile.row * decoded.row + k * decoded.k;
                TileSums &of_first_stage = *reinterpret_cast<TileSums *>(to);  // the only one
                if (way == Way::decoded)
                    tile.kernel(chain, step, a, b, of_first_stage);
                else
                    tile.half_kernel(chain, step, a, b, of_first_stage);
            }
        }
        keep.rows(sums + p.skip, width, v.out + p.first * job.out.column, rows, p.columns);
    }

    int cut(int vectors, Tile *tiles) const {
        int count = 0;
        for (i64 i = 0; i < rows; i += tiles[count++].rows) {
            tiles[count].row = i;
            tiles[count].rows = first_height(rows - i);
            tiles[count].kernel = chosen_kernel<C>(path, tiles[count].rows, vectors, job.half_operands);
            tiles[count].half_kernel = chosen_kernel<HalfLanes<C>>(path, tiles[count].rows, vectors, job.half_operands);
        }
        return count;
    }

    const ProductJob &job;
    const Region &region;
    const bool turned;
    const Rounders step;
    const Store keep;
    const Path path;
    const i64 rows, columns;
    LeftOperand left;
    i64 piece;  // products
    HalfLanes<C> chain = {};
    WordPlace place = {};
};

// Whether each vertex has a wide operand of its own: one that is used often is better packed once.
bool own_operands(const Operand &b, const ProductJob &job) {
    for (int axis = 0; axis < job.axes; ++axis)
        if (b.stride[axis] == 0 && job.shape[axis] > 1) return false;
    return true;
}

// Whether tiles of the turned product have random words: their first columns are even, and all are of one block.
bool turned_words(const ProductJob &job, const Region &region) {
    if (!is_random(job.step)) return true;
    if (!has_turned_kernel(path_of(job.step)) || job.column.data) return false;
    for (int axis = 0; axis < job.axes; ++axis)
        if (job.column.stride[axis]) return false;
    const u32 first = u32(job.column.base + region.column_begin) % 16;
    return first % 2 == 0 && first + (region.column_end - region.column_begin) <= 16;
}

}  // namespace

bool strip_product(const ProductJob &job, const Region &region) {
    if (!takes(FastPath::strips) || job.adder != Adder::sequential || job.k == 0 || job.k > job.part ||
        job.stages > 1 || job.final.active || job.initial.data)
        return false;
    const i64 rows = region.row_end - region.row_begin, columns = region.column_end - region.column_begin;
    if (rows <= tile_rows) {
        if (!own_operands(job.b, job)) return false;
        Strip<Chain>(job, region, false).run();
        return true;
    }
    const i64 vectors = (rows + lanes32 - 1) / lanes32;
    // Instructions for each vector that the wide operand costs, beside one for each column. Squares of 16-bit codes are
    // turned quickly; turning others, or without registers for them, cost more than it saved.
    const bool along_k = job.a_k == bytes_of(job.a.element) && job.a_row != job.a_k;
    const bool turns_quickly = has_turned_codes && bytes_of(job.a.element) == 2;
    const i64 packing = !along_k ? 1 : turns_quickly ? lanes32 / 4 : lanes32;
    const i64 cost = vectors * (columns + packing);
    if (cost >= rows || columns > most_rows || !own_operands(job.a, job) || !turned_words(job, region)) return false;
    const ProductJob other = turned_job(job);
    const Region there = {region.vertex_begin, region.vertex_end, region.column_begin,
                          region.column_end,   region.row_begin,  region.row_end};
    if (is_random(job.step))
        Strip<TurnedChain>(other, there, true).run();
    else
        Strip<Chain>(other, there, true).run();
    return true;
}

}  // namespace LP_ISA
}  // namespace lowprec
