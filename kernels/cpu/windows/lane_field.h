// What some lines of windows of one image read, decoded to float32: a plane for every channel of a line, in which the
// lanes of a position lie together, and zeros around the image are written down.
#ifndef LOWPREC_LANE_FIELD_H
#define LOWPREC_LANE_FIELD_H

#include "accumulate/steps.h"
#include "windows/window_field.h"

namespace lowprec {
inline namespace LP_ISA {

constexpr int lane_vectors = window_lanes / lanes32;

class LaneField : public WindowField {
  public:
    // With room for so many windows and kernel positions along a line.
    LaneField(const WindowJob &j, i64 windows, i64 taps)
        : WindowField(j, across_of(j, windows, taps), across_of(j, windows, taps) * j.channels * window_lanes),
          channel(across * window_lanes) {}

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
        find_turns();
    }

    // Decodes what lines of windows [row, stop) read.
    void fill(i64 image, i64 row, i64 stop) {
        fill_lines(data_scratch, window_lanes, row, stop, [&](float *to, i64 from) {
            if (from < 0) return zeros(to, to + line);
            float *const begin = to + left * position, *const end = begin + wide * position;
            for (float *plane = to, *rest = end; plane < to + line; plane += channel, rest += channel) {
                zeros(plane, plane + left * position);
                zeros(rest, plane + channel);
            }
            decode(job.x, start_of(image, from) + first_group * job.channels * job.x.stride[4], wide, begin);
            if (sized) largest = larger_of_two(largest, largest_of(to, 1, 0, line));
        });
    }

    // `wide` positions of x, the lanes of a group with the same element of its channels each.
    void decode(const Operand &from, const char *at, i64 wide, float *to) {
        const bool plain = job.channels == 1 && job.outputs == 1;
        if (plain) return decode_lanes(from, at, wide, to);
        const float *codes = packed(from, at, wide, some_groups * job.channels);
        for (i64 i = 0; i < wide; ++i, codes += packed_width, to += position)
            for (i64 c = 0; c < job.channels; ++c) spread(codes + c, to + c * channel);
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

    static constexpr i64 position = window_lanes;  // floats from one to the next,
    const i64 channel;                             // and from one channel to the next
    i64 first_lane = 0, some_lanes = 0;
    alignas(64) float start[window_lanes];  // what sums start from

  private:
    // Where a vector's lanes take their elements from so few others that one vector holds them, they are turned.
    void find_turns() {
        turns = true;
        for (int v = 0; v < lane_vectors; ++v)
            for (int l = 0; l < lanes32; ++l) {
                const i64 lane = v * lanes32 + l;
                const int from = lane < some_lanes ? channel_of[lane] - channel_of[v * lanes32] : 0;
                turn_from[v][l] = u32(from);
                used[v][l] = lane < some_lanes ? ~0u : 0;
                turns = turns && from < lanes32;
            }
    }

    void spread(const float *codes, float *to) const {
        if (turns) {
            for (int v = 0; v < lane_vectors; ++v, to += lanes32) {
                const u32v some = v * lanes32 < some_lanes ? load<u32v>(codes + channel_of[v * lanes32]) : u32v{};
                store(to, __builtin_shuffle(some, turn_from[v]) & used[v]);
            }
            return;
        }
        for (i64 l = 0; l < some_lanes; ++l) to[l] = codes[channel_of[l]];
        for (i64 l = some_lanes; l < window_lanes; ++l) to[l] = 0;
    }

    // Read in whole vectors: up to lanes32 floats and the channels of a group further.
    const float *packed(const Operand &from, const char *at, i64 wide, i64 columns) {
        packed_width = (columns + lanes32 - 1) / lanes32 * lanes32;
        float *to = packed_scratch.of(wide * packed_width + lanes32);
        const PanelShape shape = {wide, 0, columns, packed_width, packed_width};
        pack_panel(from.element, from.table, at, from.stride[2], from.stride[4], shape, to);
        return to;
    }

    i64 first_group = 0, some_groups = 0, packed_width = 0;
    int channel_of[window_lanes];  // the first one of a lane's group, among the panel's
    bool turns = false;
    u32v turn_from[lane_vectors], used[lane_vectors];
    Scratch &data_scratch = scratch_of(0), &packed_scratch = scratch_of(1);

    static Scratch &scratch_of(int which) {
        static thread_local Scratch scratch[2];
        return scratch[which];
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
