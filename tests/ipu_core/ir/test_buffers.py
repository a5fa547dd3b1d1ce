"""Memory of whole arrays: results that live at a time lie apart, and little is lost between them."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core.chip.arrays import LINE
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.run.buffers import allocate, pack
from ipu_core.ir.trace.tracing import trace
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.train.optim import Adam
from ipu_core.train.step import step_block

SHAPES = [(1,), (3, 4), (40, 5), (0, 2)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 1, 2, 3])), min_size=1, max_size=12))
def test_what_lives_at_a_time_lies_apart(choices: list[tuple[int, int]]) -> None:
    def f(*inputs: np.ndarray) -> list[np.ndarray]:
        rows = [[x * 1.5] for x in inputs]
        for back, which in choices:
            row = rows[which]
            row.append(row[-1] + row[max(0, len(row) - 1 - back)])
        return [row[-1] for row in rows]

    block = trace(f, *(np.ones(shape, np.float32) for shape in SHAPES))
    arrays, last = allocate(block, {}).arrays, lifetimes(block).last
    spans = [(e.output, first, last.get(e.output, first)) for first, e in enumerate(block.equations)]
    for (a, start, end), (b, begin, stop) in itertools.combinations(spans, 2):
        if start <= stop and begin <= end:
            assert not np.may_share_memory(arrays[a], arrays[b])
    assert all(arrays[var].__array_interface__["data"][0] % LINE == 0 for var, *_ in spans if var.type.size)


lives = st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=100, deadline=None)
@given(st.lists(lives, max_size=15))
def test_no_two_that_live_at_a_time_overlap(chosen: list[tuple[int, int, int]]) -> None:
    sizes, spans = [size for size, *_ in chosen], [(min(one), max(one)) for _, *one in chosen]
    offsets, total = pack(sizes, spans)
    places = list(zip(sizes, spans, offsets, strict=True))
    assert all(offset % LINE == 0 and offset + size <= total for size, _, offset in places)
    for (a, (start, end), at), (b, (begin, stop), there) in itertools.combinations(places, 2):
        if start <= stop and begin <= end and a and b:
            assert at + a <= there or there + b <= at
    assert total <= sum(-(-size // LINE) * LINE for size in sizes)


def test_little_is_lost_between_the_results_of_a_language_model() -> None:
    size = Size(width=32, layers=2, heads=2, context=16)
    text = np.zeros((4, 16), np.int32)
    block = step_block(
        lambda params, batch: lm.loss(size.heads, params, batch),
        Adam(0.1),
        lm.initial(lm.layout(size), 0),
        (text, text),
    )
    views, last = lifetimes(block).views, lifetimes(block).last
    live = np.zeros(len(block.equations) + 1, np.int64)
    for first, equation in enumerate(block.equations):
        var = equation.output
        if views[var].root is var:
            live[first : last.get(var, first) + 1] += -(-var.type.size * 4 // LINE) * LINE
    assert live.max() <= allocate(block, {}).bytes <= 1.05 * live.max()
