"""Attention built from a graph alone: the bits of the lowered training layer, and the layer's numbers in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Execute, Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.attention import (
    additive_mask,
    attention,
    causal_mask,
    multi_head_attention,
    padding_mask,
    rotary_embedding,
    segment_mask,
)
from ipu_core.library.elementwise import add_array
from ipu_core.target import Target
from library.conftest import Build, lowered, run

RNG = np.random.default_rng(6)
QUERY, KEY, VALUE = (RNG.normal(size=shape) for shape in ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)))
LENGTHS = np.array([[6], [2]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1, 7], [3, 3, 3, 2, -1, -1]], np.int32)
DISTANCES = RNG.normal(size=(5, 6))
HEADS = [RNG.normal(size=shape) / 2 for shape in ((2, 6, 8), (8, 24), (24,), (8, 8), (8,))]
Case = tuple[Build, Callable[..., Any], list[np.ndarray[Any, Any]]]


def heads(rotary: bool) -> Case:
    """Causal self-attention in two heads."""

    def build(g: Graph, p: list[Program], x: Any, w: Any, b: Any, u: Any, c: Any, **how: Any) -> list[Tensor]:
        weights = {"qkv": {"weight": w, "bias": b}, "out": {"weight": u, "bias": c}}
        mask = causal_mask(g, x.shape[1])
        how |= {"mask": mask, "rotary": rotary, "accumulate": x.format}
        return [multi_head_attention(g, weights, x, 2, p, **how)]

    def layer(x: Any, w: Any, b: Any, u: Any, c: Any) -> Any:
        weights = {"qkv": {"weight": w, "bias": b}, "out": {"weight": u, "bias": c}}
        return nn.multi_head_attention(weights, x, 2, nn.causal_mask(6), rotary=rotary)

    return build, layer, HEADS


CASES: dict[str, Case] = {
    "attention": (
        lambda g, p, q, k, v, **how: [attention(g, q, k, v, p, accumulate=q.format, **how)], nn.attention,
        [QUERY, KEY, VALUE]),
    "attention, causal": (
        lambda g, p, q, k, v, **how: [
            attention(g, q, k, v, p, mask=causal_mask(g, 5, 6), accumulate=q.format, **how)],
        lambda q, k, v: nn.attention(q, k, v, nn.causal_mask(5, 6)), [QUERY, KEY, VALUE]),
    "attention, padded": (
        lambda g, p, q, k, v, n, **how: [
            attention(g, q, k, v, p, mask=padding_mask(g, n, 6, p), accumulate=q.format, **how)],
        lambda q, k, v, n: nn.attention(q, k, v, nn.padding_mask(n, 6)), [QUERY, KEY, VALUE, LENGTHS]),
    "attention, biased": (
        lambda g, p, q, k, v, b, **how: [attention(g, q, k, v, p, bias=b, accumulate=q.format, **how)],
        lambda q, k, v, b: nn.attention(q, k, v, bias=b), [QUERY, KEY, VALUE, DISTANCES]),
    "attention, additive mask": (
        lambda g, p, q, k, v, **how: [
            attention(g, q, k, v, p, bias=additive_mask(g, causal_mask(g, 5, 6), p, out_format=q.format),
                      accumulate=q.format, **how)],
        lambda q, k, v: nn.attention(q, k, v, bias=nn.additive_mask(nn.causal_mask(5, 6))), [QUERY, KEY, VALUE]),
    "two heads": heads(False),
    "two heads, rotary": heads(True),
    "rotary": (lambda g, p, x: [rotary_embedding(g, x, p)], nn.rotary_embedding, [QUERY]),
    "rotary, later": (
        lambda g, p, x: [rotary_embedding(g, x, p, first=9, base=100.0)],
        lambda x: nn.rotary_embedding(x, first=9, base=100.0), [QUERY]),
}  # fmt: skip


@pytest.mark.parametrize("tiles", [3, 1472])
@pytest.mark.parametrize("dtype, spec", [(np.float32, "fp32.32"), (np.float16, "fp16.16/nearest")])
@pytest.mark.parametrize("name", CASES)
def test_a_builder_has_the_bits_of_the_lowered_layer(name: str, dtype: Any, spec: str, tiles: int) -> None:
    build, layer, given = CASES[name]
    arrays = [x if x.dtype == np.int32 else x.astype(dtype) for x in given]
    (got,), (wanted,) = run(build, arrays, tiles), lowered(layer, arrays, spec, tiles)
    true = layer(*(x if x.dtype == np.int32 else x.astype(np.float64) for x in arrays))
    tolerance = 3e-6 if dtype == np.float32 else 1e-2
    np.testing.assert_allclose(got.astype(np.float64), true, rtol=tolerance, atol=tolerance)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name, count", [("attention, causal", 3), ("two heads, rotary", 5)])
def test_stochastic_rounding_takes_as_many_numbers_as_stated(name: str, count: int) -> None:
    build, _, given = CASES[name]
    graph, programs = Graph(Target("gc200", tiles=6)), list[Program]()
    build(graph, programs, *(add_array(graph, "float16", x.shape) for x in given), stochastic=True, operation=7)
    sets = (program.compute_set for program in programs if isinstance(program, Execute))
    drawn = {group.operation for each in sets for group in each.groups if group.codelet.uses_key}
    assert drawn == set(range(7, 7 + count))
    arrays = [x.astype(np.float16) for x in given]
    nearest, one = (run(build, arrays, 6, stochastic=stochastic)[0] for stochastic in (False, True))
    np.testing.assert_allclose(one.astype(float), nearest.astype(float), rtol=2e-2, atol=1e-2)
    assert (one != nearest).any()


def test_masks_are_those_of_the_training_layer() -> None:
    for keys in (None, 6):
        got = run(lambda g, p, keys=keys: [causal_mask(g, 4, keys)], [], 3)[0]
        np.testing.assert_array_equal(got, np.tri(4, keys or 4, (keys or 4) - 4))
    got = run(lambda g, p, n: [padding_mask(g, n, 6, p)], [LENGTHS], 3)[0]
    np.testing.assert_array_equal(got, np.arange(6) < LENGTHS[..., None, None])
    for count in (None, 4):
        got = run(lambda g, p, s, count=count: [segment_mask(g, s, p, count=count)], [SEGMENTS], 3)[0]
        np.testing.assert_array_equal(got, nn.segment_mask(SEGMENTS, count))
    got = run(lambda g, p, s, k: [segment_mask(g, s, p, count=4, keys=k)], [SEGMENTS[:, :3], SEGMENTS], 3)[0]
    np.testing.assert_array_equal(got, nn.segment_mask(SEGMENTS[:, :3], 4, keys=SEGMENTS))


def test_wrong_sizes_are_refused() -> None:
    graph, programs = Graph(Target("gc200", tiles=4)), list[Program]()
    x, narrow = (add_array(graph, "float16", shape, "x") for shape in ((2, 4, 6), (2, 4, 5)))
    layer = {"weight": x[0], "bias": x[0, 0]}
    for f, message in (
        (lambda: attention(graph, x, narrow, x, programs), "query, key and value must fit"),
        (lambda: attention(graph, x, x, x[:, :2], programs), "query, key and value must fit"),
        (lambda: multi_head_attention(graph, {}, x, 4, programs), "4 heads do not divide a width of 6"),
        (lambda: multi_head_attention(graph, {"qkv": layer, "out": layer}, x, 2, programs), "weights must have"),
        (lambda: rotary_embedding(graph, narrow, programs), "a width of 5 is odd"),
    ):
        with pytest.raises(ValueError, match=message):
            f()
    assert programs == []
