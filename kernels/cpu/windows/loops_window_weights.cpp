// Weight gradients of convolutions of many small groups: lanes are outputs of neighbouring groups, a tile has some
// kernel positions of a row, and its terms are all output positions. Between blocks of those the sums stand in float32.
#include "accumulate/store.h"
#include "isa/fast_paths.h"
#include "windows/lane_field.h"
#include "windows/window_chain.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 tile_taps = 4;  // as many chains as one multiply-add has cycles
thread_local Scratch sums_scratch, gradient_scratch, table_scratch;

i64 whole_tiles(i64 taps) { return (taps + tile_taps - 1) / tile_taps * tile_taps; }

class WeightSums {
  public:
    explicit WeightSums(const WindowJob &j)
        : job(j), step(j.step), final(j.final), keep(j.out), field(j, j.count[1], whole_tiles(j.kernel[1])) {
        const Path path = path_of(job.step);
        random = step.active && step.mode == stochastic;
        field.sized = bounds_pay && takes(FastPath::bounded_sums) && path == Path::grid_stochastic;
        kernel = window_kernel_of(path, tile_taps, job.half_operands);
        total = job.images * job.count[0] * job.count[1];
        taps = whole_tiles(job.kernel[1]);
        chain.longest = job.group < total ? job.group : total;
        chain.weights_row = chain.start_row = chain.sums_row = window_lanes;
        chain.whole_words = step.whole_words();
        chain.row = job.dilation[1] * field.position;
        chain.largest_product = __builtin_inff();
        chain.number_step = u32(job.inner);
        chain.tiles = 1;
        const i64 most = field.lines * job.count[1];
        per_block = chain.whole_words ? 2 : 4;
        most_blocks = random ? (most / chain.longest + 2) / per_block + 2 : 0;
        make_tables(most);
    }

    // Kernel rows [begin, end), counted over panels of lanes.
    void run(i64 begin, i64 end) {
        while (begin < end) {
            const i64 high = job.kernel[0], first = begin % high;
            const i64 stop = first + end - begin < high ? first + end - begin : high;
            field.take_panel(begin / high);
            kernel_rows(first, stop);
            begin += stop - first;
        }
    }

  private:
    void make_tables(i64 most) {
        const i64 term_floats = (2 * most + 15) & ~i64(15), end_floats = (most + 16) & ~i64(15);
        const i64 block_floats = most_blocks * i64(sizeof(BlockLanes) / sizeof(float));
        float *at = table_scratch.of(term_floats + end_floats + block_floats);
        terms = reinterpret_cast<i64 *>(at);
        ends = reinterpret_cast<int *>(at + term_floats);
        blocks = reinterpret_cast<BlockLanes *>(at + term_floats + end_floats);
        chain.terms = terms;
        chain.ends = ends;
        chain.block = blocks;
        gradient = gradient_scratch.of(most * window_lanes);
        for (i64 k = 0; k < most; ++k)
            terms[k] =
                k / job.count[1] * job.stride[0] * field.line + k % job.count[1] * job.stride[1] * field.position;
    }

    void kernel_rows(i64 first, i64 stop) {
        const i64 rows = (stop - first) * job.channels * taps;
        sums = sums_scratch.of((rows + 1) * window_lanes);
        for (i64 i = 0; i < rows; ++i) __builtin_memcpy(sums + i * window_lanes, field.start, sizeof field.start);
        for (int v = 0; random && v < lane_vectors; ++v) words[v] = lane_words(job, field.first_lane + v * lanes32);
        i64 done = 0;
        for (i64 image = 0; image < job.images; ++image)
            for (i64 row = 0; row < job.count[0]; row += field.lines) {
                const i64 end = row + field.lines < job.count[0] ? row + field.lines : job.count[0];
                field.fill(image, row, end);
                take_gradient(image, row, end);
                const i64 count = (end - row) * job.count[1];
                cut_into_groups(done, count);
                add_block(first, stop);
                done += count;
            }
        for (i64 k = first; k < stop; ++k) store_row(k, sums + (k - first) * job.channels * taps * window_lanes);
    }

    void take_gradient(i64 image, i64 row, i64 end) {
        const Operand &from = job.weight;
        for (i64 y = row; y < end; ++y) {
            const char *at =
                from.data + image * from.stride[0] + y * from.stride[1] + field.first_lane * from.stride[4];
            field.decode_lanes(from, at, job.count[1], gradient + (y - row) * job.count[1] * window_lanes);
        }
        if (!field.sized) return;
        const i64 floats = (end - row) * job.count[1] * window_lanes;
        largest_gradient = LaneField::larger_of_two(largest_gradient, largest_of(gradient, 1, 0, floats));
        chain.largest_product = bit_cast<float>(field.largest) * bit_cast<float>(largest_gradient);
    }

    // The groups of `count` products after `done` others: the first one may have begun before, the last one go on.
    void cut_into_groups(i64 done, i64 count) {
        chain.groups = 0;
        chain.first_group = job.first_group + u32(done / chain.longest);
        for (i64 end = chain.longest - done % chain.longest; step.active && end < count; end += chain.longest)
            ends[chain.groups++] = int(end);
        ends[chain.groups++] = int(count);
        chain.goes_on = (done + count) % chain.longest != 0 && done + count < total;
    }

    void add_block(i64 first, i64 stop) {
        for (int v = 0; v < lane_vectors && v * lanes32 < field.some_lanes; ++v) {
            if (random) {
                const i64 count = (chain.first_group % per_block + chain.groups - 1) / per_block + 1;
                fill_blocks(words[v], chain, count, blocks);
                chain.words = &words[v];
            }
            chain.weights = gradient + v * lanes32;
            float *at = sums + v * lanes32;
            for (i64 k = first; k < stop; ++k)
                for (i64 c = 0; c < job.channels; ++c)
                    for (i64 tap = 0; tap < taps; tap += tile_taps, at += tile_taps * window_lanes) {
                        chain.number = job.row + u32(k * job.outer + tap * job.inner + c);
                        chain.x = field.data + k * job.dilation[0] * field.line + tap * chain.row + c * field.channel +
                                  v * lanes32;
                        chain.start = at;
                        kernel(chain, step, at);
                    }
        }
    }

    void store_row(i64 k, float *from) {
        for (i64 c = 0; c < job.channels; ++c, from += taps * window_lanes) {
            if (final.active) final.apply(from, nullptr, 0, taps * lane_vectors, final);
            for (i64 tap = 0; tap < job.kernel[1]; ++tap)
                keep.row(from + tap * window_lanes,
                         job.out.data + k * job.out.stride[0] + tap * job.out.stride[1] + c * job.out.stride[2] +
                             field.first_lane * job.out.column,
                         field.some_lanes);
        }
    }

    const WindowJob &job;
    const Rounders step, final;
    const Store keep;
    LaneField field;
    bool random;
    WindowKernel kernel;
    WindowChain chain = {};
    i64 total, taps, per_block, most_blocks;  // products of a chain; kernel positions of a row, up to whole tiles
    i64 *terms;
    int *ends;
    BlockLanes *blocks;
    float *gradient, *sums = nullptr;
    u32 largest_gradient = 0;
    LaneWords words[lane_vectors];
};

}  // namespace

void window_weights(const WindowJob &job, i64 begin, i64 end) { WeightSums(job).run(begin, end); }

}  // namespace LP_ISA
}  // namespace lowprec
