// Convolutions of many groups with few channels and outputs each, such as depthwise ones: lanes are outputs of
// neighbouring groups, each with a term of its own. Some lines of windows of one image at a time read a field.
#include "accumulate/store.h"
#include "isa/fast_paths.h"
#include "windows/lane_field.h"
#include "windows/window_chain.h"

namespace lowprec {
inline namespace LP_ISA {

namespace {

constexpr i64 half_rows = window_rows / 2, most_tiles = 8;
thread_local Scratch table_scratch;

i64 whole_tiles(i64 windows) { return (windows + half_rows - 1) / half_rows * half_rows; }

class WindowSums {
  public:
    explicit WindowSums(const WindowJob &j)
        : job(j),
          step(j.step),
          final(j.final),
          keep(j.out),
          field(j, whole_tiles(j.count[1]), j.kernel[1]),
          count(j.kernel[0] * j.kernel[1] * j.channels) {
        const Path path = path_of(job.step);
        random = step.active && step.mode == stochastic;
        field.sized = bounds_pay && takes(FastPath::bounded_sums) && path == Path::grid_stochastic;
        for (int i = 0; i < 2; ++i) kernel[i] = window_kernel_of(path, window_rows >> i, job.half_operands);
        cut_into_groups();
    }

    // Lines of windows [begin, end), counted over images and panels of lanes.
    void run(i64 begin, i64 end) {
        const i64 high = job.count[0];
        while (begin < end) {
            const i64 row = begin % high, image = begin / high % job.images, panel = begin / high / job.images;
            i64 stop = row + field.lines < high ? row + field.lines : high;
            if (stop - row > end - begin) stop = row + end - begin;
            if (panel != at_panel) take_panel(panel);
            field.fill(image, row, stop);
            if (field.sized) chain.largest_product = bit_cast<float>(field.largest) * bit_cast<float>(largest_weight);
            for (i64 y = row; y < stop; ++y) windows_of_line(image, y, y - row);
            begin += stop - row;
        }
    }

  private:
    // Tables that all panels share stand first in the scratch, then those of a panel.
    void cut_into_groups() {
        const i64 taps = job.kernel[0] * job.kernel[1], per_tap = (job.channels + job.group - 1) / job.group;
        const i64 groups = step.active ? taps * per_tap : 1, per_block = step.whole_words() ? 2 : 4;
        blocks = random ? i64((job.first_group % per_block + groups - 1) / per_block + 1) : 0;
        const i64 term_floats = (2 * count + 15) & ~i64(15), end_floats = (groups + 15) & ~i64(15);
        const i64 block_floats = blocks * i64(sizeof(BlockLanes) / sizeof(float)) * lane_vectors;
        float *at = table_scratch.of(term_floats + end_floats + block_floats + count * window_lanes);
        i64 *terms = reinterpret_cast<i64 *>(at);
        int *ends = reinterpret_cast<int *>(at + term_floats);
        block_table = reinterpret_cast<BlockLanes *>(at + term_floats + end_floats);
        weights = at + term_floats + end_floats + block_floats;
        for (i64 k = 0, g = 0; k < count; ++k) {
            const i64 tap = k / job.channels, channel = k % job.channels;
            const i64 down = tap / job.kernel[1] * job.dilation[0], right = tap % job.kernel[1] * job.dilation[1];
            terms[k] = down * field.line + right * field.position + channel * field.channel;
            if (step.active && (channel + 1 == job.channels || (channel + 1) % job.group == 0)) ends[g++] = int(k + 1);
        }
        if (!step.active) ends[0] = int(count);
        chain.terms = terms;
        chain.ends = ends;
        chain.groups = int(groups);
        chain.longest = job.group < job.channels ? job.group : job.channels;
        chain.weights_row = window_lanes;
        chain.sums_row = lanes32;
        chain.first_group = job.first_group;
        chain.whole_words = step.whole_words();
        chain.row = job.stride[1] * field.position;
        chain.largest_product = __builtin_inff();
        chain.number_step = 1;
    }

    void take_panel(i64 panel) {
        at_panel = panel;
        field.take_panel(panel);
        for (i64 k = 0; k < count; ++k) {
            const i64 tap = k / job.channels, channel = k % job.channels;
            take_weights(job.weight.data + tap / job.kernel[1] * job.weight.stride[0] +
                             tap % job.kernel[1] * job.weight.stride[1] + channel * job.weight.stride[3],
                         weights + k * window_lanes);
        }
        if (field.sized) largest_weight = largest_of(weights, 1, 0, count * window_lanes);
        if (!random) return;
        for (int v = 0; v < lane_vectors; ++v) {
            words[v] = lane_words(job, field.first_lane + v * lanes32);
            fill_blocks(words[v], chain, blocks, block_table + v * blocks);
        }
    }

    // The lanes' weights for one term.
    void take_weights(const char *from, float *to) const {
        const long group = job.weight.stride[2], output = job.weight.stride[4];
        for (i64 lane = field.some_lanes; lane < window_lanes; ++lane) to[lane] = 0;
        for (i64 lane = 0; lane < field.some_lanes;) {
            const i64 g = (field.first_lane + lane) / job.outputs, n = (field.first_lane + lane) % job.outputs;
            i64 length = job.outputs == 1 ? field.some_lanes : job.outputs - n;
            if (length > field.some_lanes - lane) length = field.some_lanes - lane;
            decode_run(job.weight.element, job.weight.table, from + g * group + n * output,
                       job.outputs == 1 ? group : output, to + lane, length);
            lane += length;
        }
    }

    // Line y of windows, which is number `from` of those that the field was filled for.
    void windows_of_line(i64 image, i64 y, i64 from) {
        const u32 row0 = job.row + u32(image * job.outer + y * job.inner);
        char *out =
            job.out.data + image * job.out.stride[0] + y * job.out.stride[1] + field.first_lane * job.out.column;
        for (int v = 0; v < lane_vectors && v * lanes32 < field.some_lanes; ++v) {
            chain.words = &words[v];
            chain.block = block_table + v * blocks;
            chain.weights = weights + v * lanes32;
            chain.start = field.start + v * lanes32;
            const float *line = field.data + from * job.stride[0] * field.line + v * lanes32;
            char *to = out + v * lanes32 * job.out.column;
            const i64 here = field.some_lanes - v * lanes32 < lanes32 ? field.some_lanes - v * lanes32 : lanes32;
            for (i64 x = 0; x < job.count[1];) {
                const i64 rest = job.count[1] - x, tiles = smaller((rest + half_rows - 1) / window_rows, most_tiles);
                const bool half = tiles == 0;
                chain.tiles = half ? 1 : tiles;
                const i64 rows = half ? half_rows : tiles * window_rows;
                chain.number = row0 + u32(x);
                chain.x = line + x * chain.row;
                alignas(64) float sums[(most_tiles * window_rows + 1) * lanes32];
                kernel[half](chain, step, sums);
                if (final.active) final.apply(sums, nullptr, 0, rows, final);
                keep.rows(sums, lanes32, to + x * job.out.row, smaller(rows, rest), here);
                x += rows;
            }
        }
    }

    const WindowJob &job;
    const Rounders step, final;
    const Store keep;
    LaneField field;
    const i64 count;  // products of a window
    i64 blocks;       // of groups
    bool random;
    WindowKernel kernel[2];
    WindowChain chain = {};
    BlockLanes *block_table;
    float *weights;
    i64 at_panel = -1;
    u32 largest_weight = 0;
    LaneWords words[lane_vectors];
};

}  // namespace

void windows(const WindowJob &job, i64 begin, i64 end) { WindowSums(job).run(begin, end); }

}  // namespace LP_ISA
}  // namespace lowprec
