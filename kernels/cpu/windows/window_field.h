// The lines of an image that some lines of windows read, decoded to float32, with zeros around the image written down.
#ifndef LOWPREC_WINDOW_FIELD_H
#define LOWPREC_WINDOW_FIELD_H

#include "product/operand_panels.h"
#include "product/scratch.h"
#include "windows/window_job.h"

namespace lowprec {
inline namespace LP_ISA {

inline i64 whole(i64 count, i64 of) { return (count + of - 1) / of * of; }

class WindowField {
  public:
    const i64 across, line;  // positions of an image that a line of windows reads; floats of a line
    i64 lines;               // of windows at a time
    float *data = nullptr;
    bool sized = false;  // `largest` is wanted:
    u32 largest = 0;     // the largest magnitude that was decoded, as bits

    static u32 larger_of_two(u32 a, u32 b) { return a > b ? a : b; }

    // Positions that so many windows of a line read with so many kernel positions.
    static i64 across_of(const WindowJob &j, i64 windows, i64 taps) {
        return (windows - 1) * j.stride[1] + (taps - 1) * j.dilation[1] + 1;
    }

  protected:
    WindowField(const WindowJob &j, i64 positions, i64 line_floats) : across(positions), line(line_floats), job(j) {
        left = job.front[1] > 0 ? job.front[1] : 0;
        skip = left - job.front[1];
        const i64 rest = job.image_size[1] - skip;
        wide = rest < across - left ? rest : across - left;
        lines = (field_floats() / line - high_of(0)) / job.stride[0];
        if (lines < 1) lines = 1;
    }

    // read(to, from) takes an image's line `from`, -1 outside of it, for every line that windows of lines [row, stop)
    // read.
    template <class Read>
    void fill_lines(Scratch &scratch, i64 slack, i64 row, i64 stop, const Read &read) {
        const i64 high = high_of(stop - row);
        data = scratch.of(high * line + slack);
        for (i64 i = 0; i < high; ++i) {
            if (!is_read(i, stop - row)) continue;
            const i64 from = row * job.stride[0] + i - job.front[0];
            read(data + i * line, from < 0 || from >= job.image_size[0] || wide <= 0 ? -1 : from);
        }
    }

    const char *start_of(i64 image, i64 from) const {
        return job.x.data + image * job.x.stride[0] + from * job.x.stride[1] + skip * job.x.stride[2];
    }

    static void zeros(float *begin, float *end) {
        if (begin < end) __builtin_memset(begin, 0, size_t(end - begin) * sizeof(float));
    }

    const WindowJob &job;
    i64 left, wide;  // positions of zeros before those of the image, and how many of the image there are

  private:
    // Decoded at a time, but a line of windows at least: 128 KiB, or 256 where many of so few lines would be decoded
    // once more for the next windows.
    i64 field_floats() const {
        constexpr i64 floats = i64(1) << 15;
        return floats / line < 4 * high_of(1) ? 2 * floats : floats;
    }

    i64 high_of(i64 windows) const { return (windows - 1) * job.stride[0] + (job.kernel[0] - 1) * job.dilation[0] + 1; }

    // Whether some of `windows` lines of windows read a line.
    bool is_read(i64 i, i64 windows) const {
        for (i64 k = 0; k < job.kernel[0]; ++k) {
            const i64 from = i - k * job.dilation[0];
            if (from >= 0 && from % job.stride[0] == 0 && from / job.stride[0] < windows) return true;
        }
        return false;
    }

    i64 skip;  // positions of the image before the first that is read
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
