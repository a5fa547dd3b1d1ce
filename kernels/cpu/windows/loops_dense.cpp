// Convolutions with few channels: windows are summed where an image lies, decoded, so that none is copied. Lanes are
// the outputs of a group, or neighbouring windows where outputs are few.
#include "accumulate/store.h"
#include "isa/fast_paths.h"
#include "windows/dense_chain.h"
#include "windows/dense_field.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

thread_local Scratch weight_scratch, term_scratch;

Destination turned(Destination out) {
    const long row = out.row;
    out.row = out.column;
    out.column = row;
    return out;
}

// C is OutputLanes or WindowLanes.
template <class C>
class DenseSums {
  public:
    explicit DenseSums(const WindowJob &j)
        : job(j),
          step(j.step),
          final(j.final),
          out(lanes_are_windows ? turned(j.out) : j.out),
          keep(out),
          group(j.group < j.channels ? j.group : j.channels),
          depth(step.active ? whole(j.channels, group) : j.channels),
          count(j.kernel[0] * j.kernel[1] * depth),
          field(j, lanes_are_windows, whole(j.count[1], lanes_are_windows ? lanes32 : dense_rows[2]), depth) {
        Path path = path_of(job.step);
        const bool often = bounds_pay && takes(FastPath::bounded_sums);
        if (often && path == Path::half_nearest && group == 1) path = Path::half_bounded;
        field.sized = often && (path == Path::half_bounded || path == Path::grid_stochastic);
        for (int v = 0; v < 2; ++v)
            for (int i = 0; i < dense_heights; ++i) kernel[v][i] = choose(path, i, v + 1);
        for (i64 i = 0; i < tile_columns; ++i) zeros[i] = 0;
        chain.group = group;
        chain.part = chain.count = count;
        chain.first_group = job.first_group;
        chain.whole_words = step.whole_words();
        chain.largest_product = __builtin_inff();
        chain.stages = {1, 1, 1};
        chain.place.key = job.key;
        find_terms();
    }

    // Lines of windows [begin, end), counted over images and groups.
    void run(i64 begin, i64 end) {
        const i64 high = job.count[0];
        for (i64 at_group = -1; begin < end;) {
            const i64 row = begin % high, image = begin / high % job.images, g = begin / high / job.images;
            i64 stop = row + field.lines < high ? row + field.lines : high;
            if (stop - row > end - begin) stop = row + end - begin;
            if (g != at_group) take_weights(g);
            at_group = g;
            field.fill(g, image, row, stop);
            if (field.sized) chain.largest_product = bit_cast<float>(field.largest) * bit_cast<float>(largest_weight);
            lines(g, image, row, stop);
            begin += stop - row;
        }
    }

  private:
    static constexpr bool lanes_are_windows = std::is_same<C, WindowLanes>::value;

    KernelOf<C> choose(Path path, int height, int vectors) const {
        switch (path) {
            case Path::grid_stochastic:
            case Path::aligned_stochastic:
            case Path::any:
            case Path::any_random:
                return dense_other_kernel<C>(path, height, vectors, job.half_operands);
            default:
                return dense_nearest_kernel<C>(path, height, vectors, job.half_operands);
        }
    }

    void find_terms() {
        i64 *terms = reinterpret_cast<i64 *>(term_scratch.of(2 * count));
        for (i64 k = 0; k < count; ++k) {
            const i64 tap = k / depth, down = tap / job.kernel[1], right = tap % job.kernel[1];
            terms[k] = down * job.dilation[0] * field.line + right * job.dilation[1] * field.position +
                       k % depth * field.channel;
        }
        chain.terms = terms;
    }

    // Weights of a group, -1 where there is no channel: products (+0) * (-1) = -0 leave any sum as it is.
    void take_weights(i64 g) {
        const Operand &from = job.weight;
        const i64 floats = lanes_are_windows ? whole(job.outputs, dense_rows[2]) : whole(job.outputs, lanes32);
        weights = weight_scratch.of(floats * count);
        for (i64 tap = 0; tap < job.kernel[0] * job.kernel[1]; ++tap) {
            const char *at = from.data + tap / job.kernel[1] * from.stride[0] + tap % job.kernel[1] * from.stride[1] +
                             g * from.stride[2];
            if (lanes_are_windows)
                take_rows(at, weights + tap * depth);
            else
                for (i64 n = 0; n < job.outputs; n += tile_columns)
                    take_columns(at + n * from.stride[4], n, weights + n * count + tap * depth * width_of(n));
        }
        for (i64 n = job.outputs; lanes_are_windows && n < floats; ++n)  // rows like others, which no step finds odd
            __builtin_memcpy(weights + n * count, weights + (n - 1) * count, size_t(count) * sizeof(float));
        if (field.sized) largest_weight = largest_of(weights, 1, 0, floats * count);
    }

    void take_rows(const char *from, float *to) const {
        decode_rows(job.weight.element, job.weight.table, from, job.weight.stride[4], job.weight.stride[3], to, count,
                    job.outputs, job.channels);
        for (i64 n = 0; n < job.outputs; ++n)
            for (i64 c = job.channels; c < depth; ++c) to[n * count + c] = -1;
    }

    void take_columns(const char *from, i64 n, float *to) const {
        const i64 width = width_of(n);
        const PanelShape shape = {job.channels, 0, columns_of(n), width, width};
        pack_panel(job.weight.element, job.weight.table, from, job.weight.stride[3], job.weight.stride[4], shape, to);
        for (i64 i = job.channels * width; i < depth * width; ++i) to[i] = -1;
    }

    i64 columns_of(i64 n) const { return job.outputs - n < tile_columns ? job.outputs - n : tile_columns; }
    i64 width_of(i64 n) const { return columns_of(n) > lanes32 ? tile_columns : lanes32; }

    // Lines [row, stop) of windows, for which the field was filled.
    void lines(i64 g, i64 image, i64 row, i64 stop) {
        chain.place.head = u32(tag_step + (chain.whole_words ? 1 : 0)) << 24 | ((job.batch + u32(g)) & 0xffffffu);
        for (i64 n = 0; n < job.outputs;) {
            const i64 rest = job.outputs - n;
            const int height = dense_height(rest);
            const i64 some = lanes_are_windows ? smaller(i64(dense_rows[height]), rest) : columns_of(n);
            chain.place.column = job.column + u32(n);
            if (!lanes_are_windows) begin_columns(n, some);
            for (i64 y = row; y < stop; ++y) {
                const float *from = field.data + (y - row) * job.stride[0] * field.line;
                char *to = job.out.data + image * job.out.stride[0] + y * job.out.stride[1] + g * job.out.stride[2] +
                           n * job.out.column;
                const u32 number = job.row + u32(image * job.outer + y * job.inner);
                if constexpr (lanes_are_windows)
                    windows_as_lanes(from, weights + n * count, height, some, number, to);
                else
                    windows_as_rows(from, weights + n * count, some, number, to);
            }
            n += some;
        }
    }

    void begin_columns(i64 n, i64 some) {
        for (i64 i = 0; i < tile_columns; ++i) start[i] = i < some ? 0.0f : 1.0f;
        chain.b_k = width_of(n);
        chain.start = start;
    }

    void windows_as_rows(const float *from, const float *factors, i64 columns, u32 number, char *to) {
        const int vectors = chain.b_k > lanes32 ? 2 : 1;
        chain.a_row = job.stride[1] * field.position;
        for (i64 x = 0; x < job.count[1];) {
            const i64 rest = job.count[1] - x;
            const int height = dense_height(rest), rows = dense_rows[height];
            chain.place.row = number + u32(x);
            tile(kernel[vectors - 1][height], from + x * chain.a_row, factors, rows, vectors, to + x * job.out.row,
                 smaller(i64(rows), rest), columns);
            x += rows;
        }
    }

    void windows_as_lanes(const float *from, const float *factors, int height, i64 outputs, u32 number, char *to) {
        chain.a_row = count;
        chain.a_k = 1;
        chain.start = zeros;
        for (i64 x = 0; x < job.count[1];) {
            const i64 rest = job.count[1] - x;
            const int vectors = rest > lanes32 ? 2 : 1;
            chain.place.row = number + u32(x);
            tile(kernel[vectors - 1][height], factors, from + x, dense_rows[height], vectors, to + x * job.out.row,
                 outputs, smaller(i64(vectors * lanes32), rest));
            x += vectors * lanes32;
        }
    }

    void tile(KernelOf<C> run_tile, const float *a, const float *b, int rows, int vectors, char *to, i64 some_rows,
              i64 some_columns) const {
        alignas(64) TileSums sums;
        run_tile(chain, step, a, b, sums);
        if (final.active) final.apply(sums[0], nullptr, 0, rows * vectors, final);
        keep.rows(sums[0], vectors * lanes32, to, some_rows, some_columns);
    }

    const WindowJob &job;
    const Rounders step, final;
    const Destination out;  // its rows are a tile's
    const Store keep;
    const i64 group, depth, count;  // channels of a group of products, and in whole groups; products of a window
    DenseField field;
    KernelOf<C> kernel[2][dense_heights];
    C chain = {};
    float *weights = nullptr;
    u32 largest_weight = 0;
    alignas(64) float start[tile_columns], zeros[tile_columns];
};

}  // namespace

void dense_windows(const WindowJob &job, i64 begin, i64 end) {
    job.lanes_are_windows ? DenseSums<WindowLanes>(job).run(begin, end) : DenseSums<OutputLanes>(job).run(begin, end);
}

}  // namespace LP_ISA
}  // namespace lowprec
