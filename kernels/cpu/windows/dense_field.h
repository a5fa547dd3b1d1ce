// What some lines of windows of one image read of the channels of a convolution group, decoded to float32: channels of
// a position together, or positions of a channel.
#ifndef LOWPREC_DENSE_FIELD_H
#define LOWPREC_DENSE_FIELD_H

#include "windows/window_field.h"

namespace lowprec {
inline namespace LP_ISA {

class DenseField : public WindowField {
  public:
    const bool planar;            // positions of a channel lie together
    const i64 position, channel;  // floats from one position, and from one channel, to the next

    // With room for so many windows along a line; channels up to `depth` are there and zero.
    DenseField(const WindowJob &j, bool planes, i64 windows, i64 depth)
        : WindowField(
              j, across_of(j, windows, j.kernel[1]),
              planes ? width_of(j, windows) * depth : across_of(j, windows, j.kernel[1]) * position_of(j, depth)),
          planar(planes),
          position(planes ? 1 : position_of(j, depth)),
          channel(planes ? width_of(j, windows) : 1),
          joined(together(j, depth)),
          end(across_of(j, j.count[1], j.kernel[1])) {}

    // Decodes what lines of windows [row, stop) read of a group.
    void fill(i64 group, i64 image, i64 row, i64 stop) {
        fill_lines(scratch(), lanes32, row, stop, [&](float *to, i64 from) {
            if (from < 0) {
                zeros(to, to + line);
            } else {
                const char *at = start_of(image, from) + group * job.x.stride[3];
                planar ? planes(at, to) : positions(at, to);
            }
            fill_end(to);
            if (sized) largest = larger_of_two(largest, largest_of(to, 1, 0, line));
        });
    }

  private:
    const bool joined;  // channels and positions of the image, as they lie in memory
    const i64 end;      // of the positions that windows read

    static bool together(const WindowJob &j, i64 depth) {
        const long bytes = bytes_of(j.x.element);
        return depth == j.channels && j.x.stride[2] == depth * bytes && (depth == 1 || j.x.stride[4] == bytes);
    }
    static i64 position_of(const WindowJob &j, i64 depth) { return together(j, depth) ? depth : whole(depth, lanes32); }
    // The first whole vectors of an image's line may begin after zeros.
    static i64 width_of(const WindowJob &j, i64 windows) {
        return whole(across_of(j, windows, j.kernel[1]), lanes32) + lanes32;
    }

    void positions(const char *at, float *to) const {
        float *const begin = to + left * position;
        zeros(to, begin);
        zeros(begin + wide * position, to + line);
        const Operand &x = job.x;
        if (joined)
            decode_run(x.element, x.table, at, bytes_of(x.element), begin, wide * position);
        else
            pack_panel(x.element, x.table, at, x.stride[2], x.stride[4], {wide, 0, job.channels, position, position},
                       begin);
    }

    void planes(const char *at, float *to) const {
        const Operand &x = job.x;
        zeros(to + job.channels * channel, to + line);
        const PanelShape vectors = {job.channels, 0, wide, whole(wide, lanes32), channel};
        if (x.stride[2] == bytes_of(x.element) && pack_rows_of_kind(x.element, at, x.stride[4], vectors, to + left)) {
            for (i64 c = 0; c < job.channels; ++c, to += channel) {
                zeros(to, to + left);
                zeros(to + left + vectors.width, to + channel);
            }
            return;
        }
        pack_panel(x.element, x.table, at, x.stride[4], x.stride[2], {job.channels, left, wide, channel, channel}, to);
    }

    // Ones where no window reads but those that fill a tile: sums of zeros would be looked at by steps.
    void fill_end(float *to) const {
        if (!planar) return ones(to + end * position, to + line);
        for (float *plane = to; plane < to + line; plane += channel) ones(plane + end, plane + channel);
    }
    static void ones(float *begin, float *end) {
        for (; begin < end; ++begin) *begin = 1;
    }

    static Scratch &scratch() {
        static thread_local Scratch data;
        return data;
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
