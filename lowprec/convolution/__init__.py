"""Convolutions with a chosen accumulator, in the order of the IPU's AMP unit, and their gradients.

The products of one element are cut into groups; a group is at most `group` input channels of *one* kernel position,
so the last group of a position may be short. Groups are numbered g = 0, 1, ... over kernel positions in C order (row
by row) and, within a position, over blocks of channels, ascending. The float32 partial sum starts at +0, takes the
products of a group in the `adder`'s order (see `lowprec.matmul`), channels ascending, and is rounded to `accumulate`
once per group, short or not. With G groups in all, part p takes the groups [p c, (p + 1) c), c = ceil(G / splits), as a
chain of its own; parts are summed in float32 and in stages as in `lowprec.matmul`, and the last sum is rounded to
`out_format`. No products at all (no input channels) give +0. Padding is multiplied as zeros: an infinite or NaN weight
makes a window that reaches into it NaN.

Random bits of stochastic rounding are those of `lowprec.matmul` with

    row      the output position: its index in C order over (image, output row, output column)
    column   the output channel within its convolution group
    batch    the convolution group
    group    g for the rounding after a group; intermediate results of stages are counted as there

so a 1 x 1 convolution has the bits of the product of (positions, channels) and (channels, output channels).

The input gradient is the same sum with output channels in the place of input channels and the kernel positions that
reach an input position in reverse C order (the flipped kernel). Under strides, inputs of equal r = (y + top) mod
stride and s = (x + left) mod stride, a *phase*, are reached from the same kernel positions. Only those are terms and
counted in g (the zeros that a dilated gradient would have in between are not); an output position outside of the
gradient is multiplied as 0; an input position without any term gets +0. Row: the input position's index in C order
over (image, rows of its phase, columns of its phase); column: the input channel within its convolution group; batch:
(r * horizontal stride + s) * groups + convolution group.

The weight gradient is one product over the output positions in C order over (image, output row, output column),
rounded after every `group` of them and cut into parts as in `lowprec.matmul`; padding is multiplied as zeros. Row: the
index in C order over (kernel row, kernel column, input channel within its convolution group); column: the output
channel within its group; batch: the convolution group. No output positions (no images) give +0.
"""

from lowprec.convolution.passes import conv2d, conv2d_input_gradient, conv2d_weight_gradient

__all__ = ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"]
