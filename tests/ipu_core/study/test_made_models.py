"""Models whose data are made: known answers, batches of one shape, what packs and clusters keep, both engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.ir.pytree import flatten
from ipu_core.reproduce import graph_nets
from ipu_core.study.command import recipe
from ipu_core.study.models import bragg, catalogue, communities, molecules, uno
from ipu_core.study.models.made import Made
from ipu_core.study.models.start import initial
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Point, make_loop
from ipu_core.study.settings import OF_SIZE, USUAL, Settings
from tests.ipu_core.command_line.commands import exit_code

SMALL: dict[str, Any] = {
    "gcn": communities.Size(6, 10, 3, 4, 4.0, 1.0, 0.35, 8, 2),
    "gin": molecules.Size(40, 64, 140, 4, 8, 2),
    "braggnn": bragg.Size(40, (4, 4, 2)),
    "uno": uno.Size(5, 8, 100, (6, 7, 5), 8, 2, 2),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Settings, Made]]:
    def made(model: str) -> tuple[Settings, Made]:
        module = catalogue.MADE[model]
        monkeypatch.setitem(module.SIZES, "small", SMALL[model])
        settings = Settings(model=model, **{**USUAL[model], "steps": 3, "batch": 4})
        return settings, catalogue.load(settings)

    return made


@pytest.mark.parametrize("model", OF_SIZE)
def test_every_batch_has_one_shape_and_both_engines_the_same_bits(model: str, small: Any) -> None:
    settings, task = small(model)
    problem = catalogue.problem(settings, task)
    batches = problem.batches(3)
    shapes = [[(leaf.shape, leaf.dtype) for leaf in flatten(batches(step))[0]] for step in (0, 1, 5)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert all(np.array_equal(a, b) for a, b in zip(*(flatten(batches(2))[0] for _ in range(2)), strict=True))
    ends = []
    for engine in ("direct", "tiles"):
        own = dataclasses.replace(settings, engine=engine)
        loop = make_loop(problem, recipe(own, problem), Point("fp16.16/stochastic", 3))
        losses = loop.run(batches, 3)
        assert np.isfinite(losses).all()
        ends.append((losses.tobytes(), *(array.tobytes() for array in loop.arrays().values())))
        assert problem.evaluate is not None
        measures = problem.evaluate(loop.params, loop.precision)
        assert all(np.isfinite(value) for value in measures.values())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("model", OF_SIZE)
def test_stand_ins_have_the_shapes_of_the_parameters(model: str, small: Any) -> None:
    settings, task = small(model)
    problem = catalogue.problem(settings, task)
    assert [x.shape for x in flatten(problem.shapes)[0]] == [x.shape for x in flatten(problem.params(0))[0]]


@pytest.mark.parametrize(
    ("model", "size", "parameters"), [("uno", "talk", 21.2e6), ("gin", "talk", 1.7e6), ("braggnn", "talk", 45e3)]
)
def test_the_talks_sizes(model: str, size: str, parameters: float) -> None:
    module = catalogue.MADE[model]
    layout = module.layout(module.SIZES[size])
    count = sum(int(np.prod(start.shape)) for start in flatten(layout)[0])
    assert abs(count / parameters - 1) < 0.02


# Clusters of a graph


def test_links_go_both_ways_and_stay_mostly_inside() -> None:
    task = communities.data("small")
    size, edges = task.size, task["edges"]
    assert {tuple(pair) for pair in edges.T} == {tuple(pair) for pair in edges[::-1].T}
    inside = (edges[0] // size.nodes == edges[1] // size.nodes).mean()
    assert abs(inside - size.inside / (size.inside + size.outside)) < 0.03
    assert (np.diff(edges[1]) >= 0).all()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_is_the_subgraph_of_its_clusters(shuffle: bool) -> None:
    """The product with the normalised adjacency matrix of these nodes, dense."""
    task = communities.data("small")
    chosen = np.array([3, 11, 40])
    batch = communities.Clusters(task, 3, shuffle).made(chosen)
    nodes = (chosen[:, None] * task.size.nodes + np.arange(task.size.nodes)).ravel()
    whole = np.zeros((len(task["labels"]),) * 2)
    whole[task["edges"][1], task["edges"][0]] = 1
    own = whole[np.ix_(nodes, nodes)] + np.eye(len(nodes))
    root = 1 / np.sqrt(own.sum(axis=1))
    wanted = (root[:, None] * own * root) @ task["features"][nodes].astype(np.float64)
    messages = nn.embedding(batch["features"], batch["sources"]) * batch["shares"][:, None]
    given = nn.segment_sum(messages, batch["targets"], len(nodes))
    np.testing.assert_allclose(given, wanted, atol=1e-5)
    assert np.array_equal(batch["labels"], task["labels"][nodes])
    assert np.array_equal(batch["weights"], task["trained"][nodes])


def test_neighbours_tell_what_a_node_does_not() -> None:
    """The known answer: means over a node's community say its class, its own features hardly do."""
    task = communities.data("small")
    size, features = task.size, task["features"]
    centres = np.stack([features[task["labels"] == c].mean(axis=0) for c in range(size.classes)])
    means = features.reshape(size.communities, size.nodes, -1).mean(axis=1)

    def nearest(x: Any) -> Any:
        return np.linalg.norm(x[:, None] - centres, axis=2).argmin(axis=1)

    assert (nearest(means) == np.arange(size.communities) % size.classes).all()
    assert (nearest(features) == task["labels"]).mean() < 0.6


# Packed graphs


def test_packs_hold_every_graph_once_and_the_label_is_a_count() -> None:
    task = molecules.data("small")
    size = task.size
    assert int(task["there"].sum()) == size.graphs
    counts, labels = [], []
    for pack in range(0, len(task["labels"]), 5):
        kinds = task["features"][pack, :, 0]
        real = task["targets"][pack] < size.nodes
        sources, targets = task["sources"][pack][real], task["targets"][pack][real]
        of = task["graphs"][pack]
        assert (of[sources] == of[targets]).all()  # no link leaves a graph
        assert (of[sources] < size.depth).all()
        for graph in range(int(task["there"][pack].sum())):
            here = of[targets] == graph
            pairs = np.sort(kinds[[sources[here], targets[here]]], axis=0)
            counts.append(int((pairs == [[0], [1]]).all(axis=0).sum()) // 2)
            labels.append(int(task["labels"][pack, graph]))
    counts_, labels_ = np.array(counts), np.array(labels)
    assert counts_[labels_ == 0].max() < counts_[labels_ == 1].min()
    assert 0.3 < labels_.mean() < 0.7


def test_packs_side_by_side_keep_their_graphs_apart() -> None:
    task = molecules.data("small")
    size, batch = task.size, molecules.joined(task, np.array([7, 2, 11]))
    nodes, graphs = 3 * size.nodes, 3 * size.depth
    real = batch["targets"] < nodes
    assert (batch["graphs"][batch["sources"][real]] == batch["graphs"][batch["targets"][real]]).all()
    assert set(np.unique(batch["graphs"][batch["targets"][real]])) == set(np.flatnonzero(batch["there"]))
    assert batch["graphs"].max() <= graphs


def test_packed_graphs_have_the_loss_of_the_graphs_alone() -> None:
    assert graph_nets.packed_equality() < 1e-12


# Peaks and doses


def test_a_step_shifts_its_patches_by_whole_pixels() -> None:
    task = bragg.data("small")
    patches = task["patches"][:25]
    shifts = np.stack(np.divmod(np.arange(25), 5), axis=1).astype(np.int32)
    given = np.asarray(bragg.shifted(patches, shifts))
    for i, (down, along) in enumerate(shifts):
        assert np.array_equal(given[i], patches[i, down : down + 11, along : along + 11])
    # where the peak then lies: the brightest pixel of a mean over many is next to the known place
    off = (given * (np.arange(11) - 5)[None, :, None]).sum(axis=(1, 2)) / given.sum(axis=(1, 2))
    wanted = task["centres"][:25, 0] - (shifts[:, 0] - bragg.SHIFT)
    assert np.corrcoef(off, wanted)[0, 1] > 0.9


def test_a_better_place_has_a_smaller_loss() -> None:
    task = bragg.data("small")
    batch = bragg.batches(task, 32, 0)(0)
    params = initial(bragg.layout(task.size), 0)
    wanted = batch["centres"] - (batch["shifts"] - bragg.SHIFT)
    found = np.asarray(bragg.places(params, np.asarray(bragg.shifted(batch["patches"], batch["shifts"]))))
    np.testing.assert_allclose(bragg.loss(params, batch), np.mean((found - wanted) ** 2), rtol=1e-5)


def test_growth_falls_with_the_dose() -> None:
    task = uno.data("small")
    dose, growth = task["dose"][:, 0], task["growth"]
    assert np.corrcoef(dose, growth)[0, 1] < -0.5
    assert set(np.unique(task["fingerprint"])) == {0.0, 1.0}
    rows = uno.of_rows(task, np.arange(4))
    assert np.array_equal(rows["cell"], task["cell"][task["which"][:4, 0]])
    for name in ("descriptors", "fingerprint"):
        assert np.array_equal(rows[name], task[name][task["which"][:4, 1]])


# The command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gcn", "--size", "talk"], "unknown size 'talk': choose small or large"),
        (["mlp", "--size", "talk"], "size is for gcn, gin, braggnn, uno"),
        (["uno", "--layers", "3"], "--layers is not for uno, whose sizes have names"),
        (["gin", "--width", "3"], "--width is for lm and bert, not for gin"),
        (["braggnn", "--data", "mine.npz"], "--data is for mlp, cnn, resnet, not for braggnn"),
        (["lm", "--data", "mine.npz"], "--data is for mlp, cnn, resnet, not for lm"),
        (["gin", "--micro-batches", "2"], "micro_batches is not for gin: a batch is one graph"),
        (["gcn", "--batch", "1000"], "a batch of 1000 cannot be drawn from 48 rows"),
        (["lm", "--stash", "stash143"], "stash is for bert"),
        (["bert", "--stash", "nothing"], "nothing"),
        (["bert", "--dropout", "1"], r"dropout is a share in [0, 1), of bert, not 1.0 of bert"),
        (["mlp", "--dropout", "0.1"], "dropout is a share"),
        (["lm", "--recipe", "mlperf-bert-v2/chips=16"], "--recipe is for bert"),
        (["bert", "--recipe", "mlperf-bert-v2"], "say how many chips it ran on, as in mlperf-bert-v2/chips=16"),
        (["bert", "--recipe", "mlperf-bert-v2/chips=16"], "gradient_sum of mlperf-bert-v2 on 16 chips is not known"),
        (["bert", "--recipe", "mlperf-bert-v2/chips=16/cake=1"], "'cake=1' is no option; there are chips"),
        (["bert", "--recipe", "mlperf-bert-v1.1/chips=16/beta1=x"], "beta1 must be a number, not 'x'"),
        (["bert", "--recipe", "mlperf-bert-v2/chips=16/gradient_sum=float32", "--optimizer", "sgd"],
         "--recipe says the optimizer: leave --optimizer sgd out"),
    ],
)  # fmt: skip
def test_what_these_models_do_not_have_is_refused(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("train", *arguments) == 2
    assert words in capfd.readouterr().err


def test_a_recipe_says_optimizer_precision_scale_and_stash(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    tiny = ["--width", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "4", "--steps", "2"]
    said = "mlperf-bert-v2/chips=16/gradient_sum=float32"
    arguments = [*tiny, "--pack", "3", "--recipe", said, "--lr", "0.008", "--dropout", "0.1"]
    assert exit_code("train", "bert", *arguments, "--out", str(tmp_path / "a")) == 0
    printed = capfd.readouterr()
    told = "lamb/b1=0.55/b2=0.885/weight_decay=0.001/clip_norm=1000/bias_correction=false/packing=1 lr 0.008"
    assert told in printed.out
    assert "attention's dropout 0.1, stashes in stash143" in printed.out
    assert "betas as they are" in printed.out
    problem = catalogue.problem(settings := Settings(model="bert", pack=3, optimizer="lamb/b1=0.55/packing=1"),
                                catalogue.load(settings))  # fmt: skip
    optimizer: Any = settings.training(problem).optimizer
    assert (optimizer.b1, optimizer.packing) == (0.55, 1)
    raised: Any = dataclasses.replace(settings, optimizer="lamb/b1=0.55").training(problem).optimizer
    assert raised.packing == problem.sequences_of_a_row > 1
    assert "mlperf-bert-v2/gradient_sum=float32" in printed.out
    assert "stashes in stash143 are kept on the direct engine: gc200 has no unit for them" in printed.err
    assert "adds up 256 micro-batches, here is one of the whole batch" in printed.err
    kept = (tmp_path / "a" / "manifest.json").read_text()
    assert '"loss_scale"' in kept
    assert "stash143" in kept
    assert exit_code("train", "bert", *arguments, "--micro-batches", "2", "--out", str(tmp_path / "b")) == 0
    assert "micro-batches, here" not in capfd.readouterr().err
    more = ["--recipe", said, "--loss-scale", "none", "--precision", "fp32.32"]
    assert exit_code("train", "bert", *tiny, "--pack", "3", *more, "--lr", "0.1", "--out", str(tmp_path / "c")) == 0
    assert "not the recipe's, but as typed: --loss-scale, --precision" in capfd.readouterr().err
    assert exit_code("profile", "bert", *tiny[:8], "--recipe", said) == 2
    assert "a profile is of the tiles, and gc200 has no unit for stashes in stash143" in capfd.readouterr().err


def test_dropout_changes_training_and_not_what_is_tested() -> None:
    from ipu_core.study.models import bert
    from ipu_core.study.models.size import Size
    from ipu_core.train.data import text

    task, size = text._cut("mine", bytes(range(32, 127)) * 60), Size(16, 1, 2, 32)
    problems = [bert.problem(size, task, 4, 3, dropout=share) for share in (0.0, 0.5)]
    settings = Settings(model="bert", engine="direct", **{**USUAL["bert"], "language_model": size, "batch": 4})
    losses, tests = [], []
    for problem in problems:
        loop = make_loop(problem, recipe(settings, problem), Point("fp32.32", 0))
        assert problem.evaluate is not None
        tests.append(problem.evaluate(loop.params, loop.precision)["test_loss"])
        losses.append(loop.train(problem.batches(0)(0)))
    assert tests[0] == tests[1]
    assert losses[0] != losses[1]


def test_masks_that_would_be_taken_for_others_are_refused() -> None:
    x, wide = nn.normal(0, (2, 3, 4)), nn.normal(1, (2, 2, 3, 2))
    causal = nn.causal_mask(3)
    for mask in (nn.additive_mask(causal), np.where(causal, 0, -np.inf), np.full((3, 3), np.nan)):
        with pytest.raises(ValueError, match="one that is added to scores is bias="):
            nn.attention(wide, wide, wide, mask)
    params = {"qkv": {"weight": nn.normal(2, (4, 12))}, "out": {"weight": nn.normal(3, (4, 4))}}
    with pytest.raises(ValueError, match=r"\(rows, 1, places, places\): \(2, 3, 3\) would be one of each head"):
        nn.multi_head_attention(params, x, 2, np.stack([causal, causal]))
    whole = nn.multi_head_attention(params, x, 2, np.stack([causal, causal])[:, None])
    assert np.array_equal(whole, nn.multi_head_attention(params, x, 2, causal))


def test_scaling_and_target_reach_every_problem(small: Any) -> None:
    for model in ("uno", "braggnn"):
        settings, task = small(model)
        made = catalogue.MADE[model].problem(task, 4, UnitScaling(unit=True), Target("gc200"))
        weights = [x for x in flatten(made.params(0))[0] if x.ndim == 2 and x.size > 100] or [np.ones(1)]
        assert all(0.7 < x.std() < 1.3 or x.size == 1 for x in weights)
        assert settings.model == model
