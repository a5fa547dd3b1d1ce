// What some lines of windows of one image read, decoded to float32: the lanes of a position lie together, and zeros
// around the image are written down.
#ifndef LOWPREC_LANE_FIELD_H
#define LOWPREC_LANE_FIELD_H

#include "accumulate/steps.h"
#include "product/operand_panels.h"
#include "product/scratch.h"
#include "windows/window_job.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr int lane_vectors = window_lanes / lanes32;

class LaneField {
  public:
    // With room for so many windows and kernel positions along a line.
    LaneField(const WindowJob &j, i64 windows, i64 taps)
        : position(j.channels * window_lanes),
          across((windows - 1) * j.stride[1] + (taps - 1) * j.dilation[1] + 1),
          line(across * position),
          job(j) {
        lines = (field_floats / line - high_of(0)) / job.stride[0];
        if (lines < 1) lines = 1;
    }

    void take_panel(i64 panel) {
        first_lane = panel * window_lanes;
        const i64 lanes = job.groups * job.outputs;
        some_lanes = lanes - first_lane < window_lanes ? lanes - first_lane : window_lanes;
        const i64 last_group = (first_lane + some_lanes - 1) / job.outputs;
        first_group = first_lane / job.outputs;
        some_groups = last_group - first_group + 1;
        for (i64 lane = 0; lane < window_lanes; ++lane) {
            start[lane] = lane < some_lanes ? 0.0f : 1.0f;
            channel_of[lane] = int(((first_lane + lane) / job.outputs - first_group) * job.channels);
        }
    }

    // Decodes what lines of windows [row, stop) read.
    void fill(i64 image, i64 row, i64 stop) {
        const i64 high = high_of(stop - row), left = job.front[1] > 0 ? job.front[1] : 0, skip = left - job.front[1];
        data = data_scratch.of(high * line + position);
        const i64 rest = job.image_size[1] - skip, wide = rest < across - left ? rest : across - left;
        for (i64 i = 0; i < high; ++i) {
            if (!is_read(i, stop - row)) continue;
            float *to = data + i * line;
            const i64 from = row * job.stride[0] + i - job.front[0];
            if (from < 0 || from >= job.image_size[0] || wide <= 0) {
                zeros(to, 0, across);
                continue;
            }
            zeros(to, 0, left);
            zeros(to, left + wide, across);
            const char *at = job.x.data + image * job.x.stride[0] + from * job.x.stride[1] + skip * job.x.stride[2];
            decode(job.x, at + first_group * job.channels * job.x.stride[4], wide, to + left * position);
            if (sized) largest = larger_of_two(largest, largest_of(to + left * position, 1, 0, wide * position));
        }
    }

    // `wide` positions of x, the lanes of every channel of a group together.
    void decode(const Operand &from, const char *at, i64 wide, float *to) {
        const bool plain = job.channels == 1 && job.outputs == 1;
        if (plain) return decode_lanes(from, at, wide, to);
        const float *codes = packed(from, at, wide, some_groups * job.channels);
        for (i64 i = 0; i < wide; ++i, codes += packed_width)
            for (i64 c = 0; c < job.channels; ++c, to += window_lanes) {
                for (i64 l = 0; l < some_lanes; ++l) to[l] = codes[channel_of[l] + c];
                for (i64 l = some_lanes; l < window_lanes; ++l) to[l] = 0;
            }
    }

    // `wide` positions of an operand that has an element for every lane.
    void decode_lanes(const Operand &from, const char *at, i64 wide, float *to) {
        if (some_lanes == window_lanes)
            return pack_panel(from.element, from.table, at, from.stride[2], from.stride[4],
                              {wide, 0, window_lanes, window_lanes, window_lanes}, to);
        const float *codes = packed(from, at, wide, some_lanes);
        for (i64 i = 0; i < wide; ++i, codes += packed_width, to += window_lanes) {
            for (i64 l = 0; l < some_lanes; ++l) to[l] = codes[l];
            for (i64 l = some_lanes; l < window_lanes; ++l) to[l] = 0;
        }
    }

    static u32 larger_of_two(u32 a, u32 b) { return a > b ? a : b; }

    const i64 position, across, line;  // floats of a position; positions and floats of a line
    i64 lines;                         // of windows at a time
    i64 first_lane = 0, some_lanes = 0;
    float *data = nullptr;
    bool sized = false;                     // `largest` is wanted:
    u32 largest = 0;                        // the largest magnitude that was decoded, as bits
    alignas(64) float start[window_lanes];  // what sums start from

  private:
    static constexpr i64 field_floats = i64(1) << 15;  // decoded at a time, 128 KiB, but a line of windows at least

    i64 high_of(i64 windows) const { return (windows - 1) * job.stride[0] + (job.kernel[0] - 1) * job.dilation[0] + 1; }

    // Whether some of `windows` lines of windows read a line.
    bool is_read(i64 i, i64 windows) const {
        for (i64 k = 0; k < job.kernel[0]; ++k) {
            const i64 from = i - k * job.dilation[0];
            if (from >= 0 && from % job.stride[0] == 0 && from / job.stride[0] < windows) return true;
        }
        return false;
    }

    void zeros(float *to, i64 begin, i64 end) const {
        if (end > across) end = across;
        if (begin < end) __builtin_memset(to + begin * position, 0, size_t((end - begin) * position) * sizeof(float));
    }

    const float *packed(const Operand &from, const char *at, i64 wide, i64 columns) {
        packed_width = (columns + lanes32 - 1) / lanes32 * lanes32;
        float *to = packed_scratch.of(wide * packed_width);
        const PanelShape shape = {wide, 0, columns, packed_width, packed_width};
        pack_panel(from.element, from.table, at, from.stride[2], from.stride[4], shape, to);
        return to;
    }

    const WindowJob &job;
    i64 first_group = 0, some_groups = 0, packed_width = 0;
    int channel_of[window_lanes];  // the first one of a lane's group, among the panel's
    Scratch &data_scratch = scratch_of(0), &packed_scratch = scratch_of(1);

    static Scratch &scratch_of(int which) {
        static thread_local Scratch scratch[2];
        return scratch[which];
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
