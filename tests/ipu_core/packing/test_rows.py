"""Packed rows: every token where it belongs, the same rows from the same key, folders that go on after a kill."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import Adam, Samples, TrainLoop, nn, packing, trace, value_and_grad
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.packing import PackedFolder, PackedRows, pack, pack_graphs, write

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=60)


def sequences(lengths: list[int]) -> list[np.ndarray[Any, Any]]:
    """Tokens that are all different."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length + 1, end + 1, dtype=np.int32) for length, end in zip(lengths, ends, strict=True)]


def check(rows: PackedRows, given: list[np.ndarray[Any, Any]], length: int, depth: int, padding: int) -> None:
    """Every sequence once and whole, with its positions, segment and start; padding everywhere else."""
    assert rows.tokens.shape == rows.positions.shape == rows.segments.shape == (len(rows), length)
    assert rows.starts.shape == rows.sources.shape == (len(rows), depth)
    assert sorted(rows.sources[rows.sources >= 0]) == list(range(len(given)))
    for row, slot in itertools.product(range(len(rows)), range(depth)):
        source, start = rows.sources[row, slot], rows.starts[row, slot]
        if source < 0:
            assert start == -1
            assert not (rows.segments[row] == slot + 1).any()
            continue
        part = slice(start, start + len(given[source]))
        assert np.array_equal(rows.tokens[row, part], given[source])
        assert np.array_equal(rows.positions[row, part], np.arange(len(given[source])))
        assert (rows.segments[row, part] == slot + 1).all()
        assert np.array_equal(rows.sequence(row, slot), given[source])
    free = rows.segments == 0
    assert (rows.tokens[free] == padding).all()
    assert (rows.positions[free] == 0).all()
    assert (~free).sum() == sum(map(len, given))


@settings(max_examples=120, deadline=None)
@given(LENGTHS, st.integers(0, 12), st.integers(1, 5), st.sampled_from(["spfhp", "lpfhp", "nnlshp"]),
       st.integers(1, 70), st.integers(0, 2**64 - 1))  # fmt: skip
def test_every_token_has_its_place(
    lengths: list[int], more: int, depth: int, strategy: str, window: int, key: int
) -> None:
    if strategy == "nnlshp":
        pytest.importorskip("scipy")
        depth = max(depth, 3)
    given, length = sequences(lengths), max(lengths) + more
    how = {"depth": depth, "strategy": strategy, "window": window, "key": key, "padding": 7}
    rows = pack(given, length, **how)  # type: ignore[arg-type]
    check(rows, given, length, depth, 7)
    again = pack([list(map(int, each)) for each in given], length, **how)  # type: ignore[arg-type]
    assert all(np.array_equal(one, other) for one, other in zip(vars(rows).values(), vars(again).values(), strict=True))


def test_rows_stay_what_they_are() -> None:
    """Golden: the rows of a key are for ever."""
    rows = pack(sequences([5, 3, 8, 2, 2, 6, 1, 4]), 8, depth=3, key=11)
    assert rows.sources.tolist() == GOLDEN


GOLDEN: list[list[int]] = [[7, 3, 6], [2, -1, -1], [0, 1, -1], [5, 4, -1]]


def test_another_key_puts_others_together() -> None:
    given = sequences([4] * 64)
    one, other, same = (pack(given, 8, key=key).sources for key in (1, 2, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("given", "how", "words"),
    [
        ([[1, 2], []], {}, "sequence 1 must be 1 to 8 tokens"),
        ([[1, 2], [1] * 9], {}, "sequence 1 must be 1 to 8 tokens"),
        ([[1.5]], {}, "sequence 0 must hold whole numbers"),
        ([[1], [[2]]], {}, "sequence 1"),
        ([[-1]], {}, "from 0 to"),
        ([[2**31]], {}, "from 0 to"),
        ([], {}, "no sequences"),
        ([[1]], {"depth": 0}, "depth"),
        ([[1]], {"strategy": "best"}, "strategy is lpfhp, spfhp, nnlshp"),
        ([[1]], {"strategy": "nnlshp", "depth": 2}, "depth must be 3"),
        ([[1]], {"window": 0}, "window"),
        ("abc", {}, "sequences must be a list, not 'abc'"),
        (5, {}, "sequences must be a list, not 5"),
    ],
)
def test_what_is_no_sequence_or_option_is_refused(given: Any, how: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        pack(given, 8, **how)


# ---- folders ----


def many(slowly: bool = False) -> Iterator[Any]:
    rng = np.random.default_rng(5)
    for number in range(4000):
        if slowly and number % 500 == 499:
            time.sleep(0.02)
        yield rng.integers(0, 1000, rng.integers(1, 33), dtype=np.int32)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_folder_has_the_rows_of_memory(tmp_path: Path) -> None:
    made = write(many(), tmp_path / "rows", 32, window=500, key=3)
    rows = pack(many(), 32, window=500, key=3)
    assert (len(made), made.sequences) == (len(rows), rows.sequences) == (len(rows), 4000)
    assert np.isclose(made.efficiency, rows.efficiency)
    for row in (0, 1, len(rows) // 2, -1):
        assert all(np.array_equal(made[row][name], value) for name, value in rows[row].items())
        assert np.array_equal(made.sources(row), rows.sources[row])
    whole = PackedRows.joined(made.window(number) for number in range(8))
    assert all(np.array_equal(a, b) for a, b in zip(vars(whole).values(), vars(rows).values(), strict=True))
    with pytest.raises(IndexError):
        made[len(made)]


def test_a_write_that_is_killed_goes_on_to_the_same_files(tmp_path: Path) -> None:
    write(many(), tmp_path / "whole", 32, window=250, key=3)
    folder = tmp_path / "killed"
    program = (
        "import sys, pathlib; from ipu_core.packing import write; from tests.ipu_core.packing.test_rows import many; "
        "write(many(True), pathlib.Path(sys.argv[1]), 32, window=250, key=3)"
    )
    for count in (2, 5):
        process = subprocess.Popen([sys.executable, "-c", program, str(folder)])
        end = time.monotonic() + 120
        while len([*folder.glob("rows-*")] if folder.exists() else ()) < count:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(ValueError, match="not written to the end"):
        PackedFolder(folder)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("rows-*")}
    write(many(), folder, 32, window=250, key=3)
    for path in folder.glob(".*.draft"):
        path.unlink()  # what SIGKILL left
    assert contents(folder) == contents(tmp_path / "whole")
    # All but the last, whose manifest the kill may have lost, were not made again.
    assert sum(folder.joinpath(name).stat().st_mtime_ns == when for name, when in kept.items()) >= len(kept) - 1


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write(itertools.islice(many(), 1000), folder, 32, window=500)
    for how, words in (({"key": 1}, "key 0, not 1"), ({"depth": 2}, "depth 3, not 2"), ({"window": 400}, "window 500")):
        with pytest.raises(ValueError, match=words):
            write(itertools.islice(many(), 1000), folder, 32, **{"window": 500, **how})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length 32, not 40"):
        write(itertools.islice(many(), 1000), folder, 40, window=500)
    with pytest.raises(ValueError, match="of other sequences"):
        write(itertools.islice(many(), 500, 1500), folder, 32, window=500)
    with pytest.raises(ValueError, match="of fewer sequences"):
        write(many(), folder, 32, window=500)
    with pytest.raises(ValueError, match="of more sequences"):
        write(itertools.islice(many(), 500), folder, 32, window=500)
    assert len(write(itertools.islice(many(), 1000), folder, 32, window=500)) == len(PackedFolder(folder))
    (folder / "packing.json").write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        PackedFolder(folder)
    with pytest.raises(ValueError, match="holds no packed rows"):
        PackedFolder(tmp_path)


# ---- a model that reads them ----

WIDTH, WORDS, HEADS = 8, 40, 2


def model() -> Any:
    keys = iter(range(1, 9))
    draw = lambda *shape: nn.normal(next(keys), shape) * np.float32(0.5)  # noqa: E731
    return {"word": draw(WORDS, WIDTH), "place": draw(32, WIDTH), "qkv": draw(WIDTH, 3 * WIDTH), "out": draw(WIDTH, 1)}


def token_losses(params: Any, rows: Any, *, masked: bool = True, positions: bool = True) -> Any:
    """(rows, length): something that depends on all tokens that attention sees, and on where they are."""
    count, length = np.shape(rows["tokens"])
    places = nn.embedding(params["place"], rows["positions"]) if positions else params["place"][:length]
    x = nn.embedding(params["word"], rows["tokens"]) + places
    parts = nn.reshape(x @ params["qkv"], (count, length, 3, HEADS, WIDTH // HEADS)).transpose(2, 0, 3, 1, 4)
    scores = parts[0] @ parts[1].transpose(0, 1, 3, 2)
    if masked:
        scores = scores + nn.additive_mask(nn.segment_mask(nn.reshape(rows["segments"], (count, 1, length))), -1000.0)
    mixed = (nn.softmax(scores) @ parts[2]).transpose(0, 2, 1, 3)
    return nn.reshape(np.tanh(nn.reshape(mixed, (count, length, WIDTH)) @ params["out"]), (count, length))


def loss(params: Any, rows: Any, **how: bool) -> Any:
    """The mean over sequences of the mean over their tokens, however they are packed."""
    depth = np.shape(rows["starts"])[1]
    sums = packing.by_sequence(token_losses(params, rows, **how), rows["segments"], depth)
    ones = packing.by_sequence(np.ones(np.shape(rows["tokens"]), np.float32), rows["segments"], depth)
    means = sums / np.maximum(ones, 1)
    return nn.reduce_sum(means) / nn.reduce_sum(np.minimum(ones, 1))


def exact(rows: PackedRows, **how: bool) -> list[Any]:
    """Loss and gradients in float64."""
    batch = {name: getattr(rows, name) for name in ("tokens", "positions", "segments", "starts")}
    block = value_and_grad(trace(lambda params, given: loss(params, given, **how), model(), batch))
    return evaluate_flat(block, [np.asarray(x) for x in flatten((model(), batch))[0]])


def test_packed_and_unpacked_have_one_loss_and_gradient() -> None:
    rng = np.random.default_rng(0)
    given = [rng.integers(0, WORDS, n) for n in rng.integers(2, 17, 24)]
    apart, packed = pack(given, 32, depth=1), pack(given, 32, depth=3)
    assert len(packed) < 0.6 * len(apart)
    one, other = exact(apart), exact(packed)
    for a, b in zip(one, other, strict=True):
        assert np.allclose(a, b, rtol=1e-12, atol=1e-13)
    # Without the mask, or with positions of the row, it is another model.
    for how in ({"masked": False}, {"positions": False}):
        wrong = exact(packed, **how)
        assert not np.allclose(one[0], wrong[0], rtol=1e-6)


def test_packed_rows_train() -> None:
    rng = np.random.default_rng(0)
    rows = pack([rng.integers(0, WORDS, n) for n in rng.integers(2, 17, 60)], 32)
    samples = Samples(rows, 4)
    loop = TrainLoop(loss, model(), samples(0, 0), optimizer=Adam(0.01), precision="fp16.16/stochastic")
    losses = loop.run(samples, 20)
    assert losses[-1] < losses[0]


def test_sums_by_sequence_of_other_shapes_are_refused() -> None:
    ones, three = np.ones((2, 3), np.float32), np.ones((2, 3), np.int32)
    for values, segments, depth, words in (
        (ones, three[:, :2], 2, "have one shape"),
        (ones[0], three[0], 2, "have one shape"),
        (ones, three, 0, "depth must be"),
        (ones, ones, 2, "int32"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            packing.by_sequence(values, segments, depth)


def test_sums_by_sequence_of_arrays() -> None:
    segments = np.array([[1, 1, 2, 0], [1, 2, 3, 3]])
    values = np.array([[1.0, 2, 3, 9], [4, 5, 6, 7]], np.float32)
    assert packing.by_sequence(values, segments, 3).tolist() == [[3, 3, 0], [4, 5, 13]]
    # No infinity or NaN of padding or of another sequence reaches a sum.
    spoilt = np.array([[1, 2, np.nan, np.inf], [4, -np.inf, 6, 7]], np.float32)
    assert np.nan_to_num(packing.by_sequence(spoilt, segments, 3), nan=99).tolist() == [
        [3, 99, 0],
        [4, np.finfo(np.float32).min, 13],
    ]


def test_samples_are_copies_and_rows_are_asked_for_by_number(tmp_path: Path) -> None:
    rows, folder = pack([[1, 2], [3]], 4), write([[1, 2], [3]], tmp_path, 4)
    for one in (rows, folder):
        one[0]["tokens"][:] = 9
        assert one[0]["tokens"].tolist() == [1, 2, 3, 0]
    with pytest.raises(TypeError, match="integer"):
        folder[0:1]  # type: ignore[index]


# ---- graphs ----


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=50), st.integers(0, 10),
       st.integers(0, 20), st.none() | st.integers(1, 4))  # fmt: skip
def test_graphs_fit_by_nodes_and_edges(sizes: list[tuple[int, int]], nodes: int, edges: int, depth: int | None) -> None:
    most = max(1, max(n for n, _ in sizes) + nodes), max(e for _, e in sizes) + edges
    made = pack_graphs(np.array(sizes), *most, depth=depth)
    members = [made.members(number) for number in range(made.packs)]
    assert sorted(np.concatenate(members)) == list(range(len(sizes)))
    for number, own in enumerate(members):
        used = np.array(sizes)[own].sum(axis=0)
        assert (used == made.used[number]).all()
        assert (used <= most).all()
        assert depth is None or len(own) <= depth


def test_graphs_are_packed_well_and_what_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(0)
    nodes = rng.integers(10, 41, 4000)
    made = pack_graphs(np.stack([nodes, 2 * nodes + rng.integers(0, 5, 4000)], axis=1), 256, 640)
    assert made.efficiency[0] > 0.97
    with pytest.raises(ValueError, match="graph 1 has 9 nodes and 2 edges, more than a pack of 8 and 10"):
        pack_graphs([(3, 2), (9, 2)], 8, 10)
    with pytest.raises(TypeError, match="shape"):
        pack_graphs([3, 4], 8, 10)
    with pytest.raises(ValueError, match="from 0 on"):
        pack_graphs([(3, -2)], 8, 10)
