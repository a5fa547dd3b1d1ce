"""The random bits of an input gradient under strides: those of a product for each phase and group, as is promised."""

import numpy as np
import pytest

from lowprec import conv2d, conv2d_input_gradient, matmul

RNG = np.random.default_rng(5)
HOW = {"accumulate": "float16", "rounding": "stochastic", "key": 3}


@pytest.mark.parametrize("stride, groups", [((2, 2), 1), ((2, 2), 3), ((3, 2), 2), ((1, 2), 2), ((2, 1), 2)])
def test_a_phase_of_a_group_draws_as_one_product_of_a_batch(stride: tuple[int, int], groups: int) -> None:
    """Windows as large as their distance: an input is reached from one kernel position, which its phase says."""
    (high, wide), images, rows, columns, channels, outputs = stride, 2, 3, 2, 5, 7
    gradient = RNG.normal(size=(images, rows, columns, groups, outputs)).astype(np.float16)
    weight = RNG.normal(size=(high, wide, channels, groups, outputs)).astype(np.float16)
    found = conv2d_input_gradient(
        gradient.reshape(images, rows, columns, -1), weight.reshape(high, wide, channels, -1),
        (rows * high, columns * wide), stride=stride, groups=groups, **HOW,
    )  # fmt: skip
    left = np.tile(gradient.transpose(3, 0, 1, 2, 4).reshape(groups, -1, outputs), (high * wide, 1, 1))
    right = weight.transpose(0, 1, 3, 4, 2).reshape(high * wide * groups, outputs, channels)
    product = matmul(left, right, **HOW).reshape(high, wide, groups, images, rows, columns, channels)
    wanted = product.transpose(3, 4, 0, 5, 1, 2, 6).reshape(found.shape)
    assert found.tobytes() == wanted.tobytes()


def test_a_group_of_a_convolution_draws_as_one_product_of_a_batch() -> None:
    images, size, groups, channels, outputs = 2, 3, 3, 5, 4
    x = RNG.normal(size=(images, size, size, groups, channels)).astype(np.float16)
    weight = RNG.normal(size=(1, 1, channels, groups, outputs)).astype(np.float16)
    found = conv2d(x.reshape(images, size, size, -1), weight.reshape(1, 1, channels, -1), groups=groups, **HOW)
    wanted = matmul(x.transpose(3, 0, 1, 2, 4).reshape(groups, -1, channels), weight[0, 0].transpose(1, 0, 2), **HOW)
    wanted = wanted.reshape(groups, images, size, size, outputs).transpose(1, 2, 3, 0, 4).reshape(found.shape)
    assert found.tobytes() == wanted.tobytes()
