// How a block of threads reads the operands of a square of sums into shared memory: `lines`, rows of a or columns of b,
// times `depth` terms. Lines and terms lie at two strides each, or, of a convolution, where windows of images put them.
#ifndef LOWPREC_PANELS_CUH
#define LOWPREC_PANELS_CUH

#include "storage.cuh"

#ifdef __CUDACC_RTC__
#define LP_DEVICE __device__ __forceinline__
#define LP_UNROLL _Pragma("unroll")
#define LP_UNROLL_FOUR _Pragma("unroll 4")
#else
#define LP_DEVICE inline
#define LP_UNROLL
#define LP_UNROLL_FOUR
#endif

namespace lowprec {

// The places of a convolution's products. Rows and terms are numbered in C order over three axes each, of which the
// sizes of the inner two are here; steps are in bytes. A row and a term meet at (y, x) of an image, whose padding is
// zeros. Terms whose last index is `there` or more fill a group up: +0 of a and -1 of b, which leave every sum as it
// is.
struct Windows {
    i64 row_size[2], term_size[2];
    i64 row_step[3], term_step[3], b_step[3];
    i64 y_row[3], y_term[3], x_row[3], x_term[3];
    i64 y, x, high, wide;  // place of the first row's first term; size of the image
    i64 there, first;      // first: number of the first term that is summed here
};

inline namespace LP_ISA {

constexpr int threads = 256, side = 16;  // THREADS of backends/cuda/device.py; threads along either axis of a square
constexpr int size = side * LP_SUMS, depth = 16;
constexpr int pitch = size + 4;  // keeps rows aligned to 16 bytes, and neighbours in k in other banks

struct Panels {
    alignas(16) float a[2][depth][pitch], b[2][depth][pitch];
};

// A thread's part of a panel: LP_SUMS elements that lie apart along lines or along k.
template <class E, class From>
struct Panel {
    Decoder<E> source;
    int lines;                // how many lines there are from the first on; at most `size`
    int line, k;              // of the thread's first element, and
    int line_apart, k_apart;  // from one to the next

    LP_DEVICE Panel(const Format &format, i64 first, i64 count, i64 line_step, i64 k_step)
        : source(make_decoder<E>(format)), lines(count - first < size ? int(count - first) : size) {
        // Neighbouring threads read along the axis whose elements lie closer together.
        const bool along_k = (k_step < 0 ? -k_step : k_step) <= (line_step < 0 ? -line_step : line_step);
        line = int(threadIdx.x) / (along_k ? depth : 1) % size;
        k = along_k ? int(threadIdx.x) % depth : int(threadIdx.x) / size;
        line_apart = along_k ? threads / depth : 0;
        k_apart = along_k ? 0 : threads / size;
    }

    LP_DEVICE void keep(const float (&held)[LP_SUMS], float (&panel)[depth][pitch]) const {
        LP_UNROLL
        for (int q = 0; q < LP_SUMS; ++q) panel[k + q * k_apart][line + q * line_apart] = held[q];
    }
    LP_DEVICE float read(const char *at) const {
        const E bits = From::load(*reinterpret_cast<const typename From::stored *>(at), source);
        return float(bit_cast<typename Lanes<E>::real>(bits));
    }
};

template <class E, class From>
struct StridedPanel : Panel<E, From> {
    const char *data;  // of this thread's first element in a panel that begins at k = 0
    i64 step, apart;   // bytes along k, and from one element of the thread to its next

    LP_DEVICE StridedPanel(const Format &format, const char *all, i64 first, i64 count, i64 line_step, i64 k_step)
        : Panel<E, From>(format, first, count, line_step, k_step), step(k_step) {
        apart = this->line_apart * line_step + this->k_apart * k_step;
        data = all + (first + this->line) * line_step + this->k * k_step;
    }

    // The thread's elements of the panel that begins at `from`; zeros where there are none.
    LP_DEVICE void fetch(i64 from, i64 end, float (&held)[LP_SUMS]) const {
        const char *at = data + from * step;
        const int there = end - from < depth ? int(end - from) : depth;
        LP_UNROLL
        for (int q = 0; q < LP_SUMS; ++q, at += apart) {
            held[q] = 0.0f;
            if (this->line + q * this->line_apart < this->lines && this->k + q * this->k_apart < there)
                held[q] = this->read(at);
        }
    }
};

// The index along each of three axes of number n in C order; 32-bit divisions where they do.
LP_DEVICE void indices(i64 n, const i64 (&inner)[2], i64 (&index)[3]) {
    for (int axis = 2; axis > 0; --axis) {
        const i64 by = inner[axis - 1], outer = u64(n | by) >> 32 ? n / by : i64(u32(n) / u32(by));
        index[axis] = n - outer * by;
        n = outer;
    }
    index[0] = n;
}
LP_DEVICE i64 along(const i64 (&index)[3], const i64 (&step)[3]) {
    return index[0] * step[0] + index[1] * step[1] + index[2] * step[2];
}

// An operand of a convolution: a of windows, or b, whose lines lie at one stride.
template <class E, class From, bool of_a>
struct WindowPanel : Panel<E, From> {
    const Windows &windows;
    const char *data;
    i64 first, line_step;

    LP_DEVICE WindowPanel(const Format &format, const char *all, i64 from, i64 count, i64 step, i64 k_step,
                          const Windows &w)
        : Panel<E, From>(format, from, count, step, k_step), windows(w), data(all), first(from), line_step(step) {}

    LP_DEVICE void fetch(i64 from, i64 end, float (&held)[LP_SUMS]) const {
        LP_UNROLL
        for (int q = 0; q < LP_SUMS; ++q) {
            const i64 n = this->line + q * this->line_apart, k = from + this->k + q * this->k_apart;
            held[q] = 0.0f;
            if (n < this->lines && k < end) held[q] = element(first + n, windows.first + k);
        }
    }

  private:
    LP_DEVICE float element(i64 line, i64 k) const {
        i64 term[3];
        indices(k, windows.term_size, term);
        if (!of_a) {
            if (term[2] >= windows.there) return -1.0f;
            return this->read(data + line * line_step + along(term, windows.b_step));
        }
        i64 row[3];
        indices(line, windows.row_size, row);
        const i64 y = windows.y + along(row, windows.y_row) + along(term, windows.y_term);
        const i64 x = windows.x + along(row, windows.x_row) + along(term, windows.x_term);
        if (term[2] >= windows.there || y < 0 || y >= windows.high || x < 0 || x >= windows.wide) return 0.0f;
        return this->read(data + along(row, windows.row_step) + along(term, windows.term_step));
    }
};

}  // namespace LP_ISA
}  // namespace lowprec
#endif
