"""A training of which parts are made again has the bits of one that keeps them, however it runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec
from ipu_core import AdamW, Execution, Machine, Sgd, Target, Training, TrainLoop, nn
from ipu_core.errors import NothingSaved
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.verify import verify
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from lowprec import Accumulation, FloatFormat
from tests.examples import examples

pytestmark = pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of models as small as these
WIDE = FloatFormat("wide", 9, 3)
TARGET = Target("gc200", tiles=32)
WIDTH = 8


def block(p: Any, x: Any) -> Any:
    """Norm, product, gelu, a drawn mask, product, residual; named by its parameters alone."""
    h = nn.layer_norm(x, p["norm"]["scale"], p["norm"]["bias"])
    h = nn.dropout(nn.gelu(nn.linear(h, p["up"]["weight"], p["up"]["bias"])), 0.25)
    return x + nn.linear(h, p["down"]["weight"], p["down"]["bias"])


def loss(marked: bool, params: Any, batch: Any) -> Any:
    f = nn.checkpoint(block) if marked else block
    h = nn.linear(batch[0], params["in"]["weight"])
    for number, part in enumerate(params["blocks"]):
        with nn.name_scope(f"blocks.{number}", h):
            h = f(part, h)
    return nn.softmax_cross_entropy(nn.linear(h, params["out"]["weight"]), batch[1])


def one_block(seed: int) -> dict[str, Any]:
    return {
        "norm": {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)},
        "up": {"weight": nn.he_normal(seed, (WIDTH, 2 * WIDTH)), "bias": np.zeros(2 * WIDTH, np.float32)},
        "down": {"weight": nn.he_normal(seed + 1, (2 * WIDTH, WIDTH)), "bias": np.zeros(WIDTH, np.float32)},
    }


PARAMS = {
    "in": {"weight": nn.he_normal(1, (4, WIDTH))},
    "blocks": [one_block(10), one_block(20)],
    "out": {"weight": nn.he_normal(5, (WIDTH, 4))},
}
RNG = np.random.default_rng(0)
BATCH = RNG.normal(size=(8, 4)).astype(np.float32), RNG.integers(0, 4, 8).astype(np.int32)


def loop(how: str | None, **settings: Any) -> TrainLoop:
    """Nothing made again (None), what nn.checkpoint marks ("nn"), or parts by a name."""
    given = {"optimizer": AdamW(0.01), "key": 3, "target": TARGET} | settings
    if how not in (None, "nn"):
        given["recompute"] = how
    params = nn.unit_parameters(3, PARAMS) if "unit" in str(given["precision"]) else PARAMS
    return TrainLoop(partial(loss, how == "nn"), params, BATCH, **given)


def trained(made: TrainLoop, steps: int = 2) -> tuple[list[float], dict[str, bytes]]:
    losses = [made.train(BATCH) for _ in range(steps)]
    return losses, {name: array.tobytes() for name, array in made.arrays().items()}


def digest(made: TrainLoop) -> str:
    return made._stepper.prepared.planned.digest


WAYS = ("nn", "blocks.*", "layers", ("blocks.1", "*.up"))
PRECISIONS = ("fp16.16/stochastic", "fp16.32", "fp32.32", "fp8.16/delayed", "fp8.16/current", "unit-fp16", "mxfp8")


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    precision = draw(st.sampled_from(PRECISIONS))
    engines = ["direct"] if "8" in precision else ["direct", "tiles"]
    overlap = draw(st.booleans())
    return draw(st.sampled_from(WAYS)), {
        "precision": precision,
        "engine": draw(st.sampled_from(engines)),
        "micro_batches": draw(st.sampled_from([1, 2])),
        "loss_scale": draw(st.sampled_from([None, 64.0, "automatic"])),
        "reorder": draw(st.booleans()),
        "overlap": overlap,
        "streamed": draw(st.sampled_from([(), "optimizer.*", ("optimizer.*", "params.blocks.*")])),
        "optimizer": draw(st.sampled_from([AdamW(0.01), Sgd(0.1, momentum=0.9)])),
    }


@given(runs())
@examples(quick=12, slow=200)
def test_every_bit_is_the_same_with_and_without(run: tuple[str, dict[str, Any]]) -> None:
    how, settings = run
    plain, again = loop(None, **settings), loop(how, **settings)
    assert any(equation.drawn is not None for equation in equations_of(again.block))
    verify(again.block)
    assert digest(plain) == digest(again)
    assert trained(plain) == trained(again)


@pytest.mark.parametrize("how", ["nn", "blocks.*"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_vertices_make_the_same_bits_of_copies(how: str, micro_batches: int) -> None:
    """With orders given for the numbers of the first alone."""
    made = loop(how, precision="fp16.16/stochastic", micro_batches=micro_batches, engine="direct")
    inputs, key = made.next_step(BATCH)
    carried = made.block.carried
    results = []
    machine = Machine.build(made.block, TARGET, made.accumulations, made.control)
    for runner in (machine, Executable(made.block, made.accumulations, made.control)):
        runner.write(inputs[:carried])
        outputs = runner.feed(inputs[carried:], key)
        results.append([array.tobytes() for array in (*runner.read(), *outputs)])
    assert results[0] == results[1]
    made.train(BATCH)
    assert results[0][:carried] == [array.tobytes() for array in made.arrays().values()][:carried]


def test_a_copy_of_a_sum_has_the_order_given_for_the_first() -> None:
    plain = loop(None, precision="fp16.16/nearest", engine="direct")
    odd = {number: Accumulation(group=3, splits=2) for number in plain.accumulations}
    settings: dict[str, Any] = {"precision": "fp16.16/nearest", "accumulations": odd}
    first, *others = [trained(loop(how, engine=engine, **settings)) for how in (None, "blocks.*")
                      for engine in ("direct", "tiles")]  # fmt: skip
    assert all(first == other for other in others)
    assert first != trained(plain)
    again = loop("blocks.*", engine="direct", **settings)
    orders = {e.number: order for e, order in again.sums().values()}
    copies = [e for e in equations_of(again.block) if e.drawn is not None and e.number in orders]
    assert copies
    assert all(orders[e.number] == orders[e.keyed] and orders[e.number].group == 3 for e in copies)


def test_predictions_are_the_same() -> None:
    plain, marked = (loop(how, precision="fp16.16/nearest", engine="direct") for how in (None, "nn"))

    def scores(how: bool, params: Any, x: Any) -> Any:
        return (nn.checkpoint(block) if how else block)(params["blocks"][0], x)

    x = RNG.normal(size=(3, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(plain.predict(partial(scores, False), x), marked.predict(partial(scores, True), x))
    np.testing.assert_array_equal(nn.checkpoint(nn.gelu)(x), nn.gelu(x))


def test_cheap_values_are_made_again_beside_parts() -> None:
    settings: dict[str, Any] = {"precision": "fp16.16/stochastic", "engine": "direct"}
    wanted = trained(loop(None, **settings))
    for recompute in (True, 0.6):
        assert trained(loop("nn", recompute=recompute, **settings)) == wanted


def test_a_part_of_which_gradients_read_nothing_is_said() -> None:
    def shifted(params: Any, batch: Any) -> Any:
        return nn.mean(nn.square(nn.checkpoint(lambda p, x: x + p)(params, batch)))

    with pytest.warns(NothingSaved, match="no gradient reads anything that is made in <lambda>.0"):
        TrainLoop(shifted, np.zeros(8, np.float32), np.ones((4, 8), np.float32),
                  optimizer=Sgd(0.1), precision="fp32.32", engine="direct")  # fmt: skip


def test_tiles_that_draw_cannot_draw_twice() -> None:
    with pytest.raises(ValueError, match="never draw the same bits again"):
        loop("nn", precision="fp16.16/stochastic", random="hardware")
    with pytest.raises(ValueError, match="never draw the same bits again"):
        loop("blocks.*", precision="fp16.16/stochastic", random="hardware")


def test_what_is_made_again_is_of_the_execution() -> None:
    one, other = Execution(recompute=["layers.*", "blocks.*", "layers.*"]), Execution(recompute="blocks.*")
    assert one.recompute == ("blocks.*", "layers.*")
    assert one == Execution(recompute=("blocks.*", "layers.*"))
    assert one != other
    assert "recomputation of blocks.*, layers.*" in str(one)
    assert other.record()["recompute"] == ["blocks.*"]
    training = Training(optimizer=Sgd(0.1), precision="fp16.16/nearest")
    assert training.digest(one) == training.digest(other) == training.digest(Execution())


def test_twelve_layers_need_the_room_of_one_and_their_inputs() -> None:
    """Fullest tile, vertices and code with it, and cycles."""
    size = Size(width=32, layers=12, heads=2, context=32)
    text = np.random.default_rng(0).integers(0, 256, (32, size.context)).astype(np.int32)
    make = partial(
        TrainLoop, partial(lm.loss, size.heads), lm.initial(lm.layout(size), 0), (text, text),
        optimizer=Sgd(0.1), precision="fp16.16/stochastic", target=Target("gc200", tiles=128),
    )  # fmt: skip
    plain, again = make(), make(recompute="layers")
    before, after = plain.profile, again.profile
    assert before is not None
    assert after is not None
    assert after.memory.peak_bytes < 0.6 * before.memory.peak_bytes
    assert before.cycles < after.cycles < 1.5 * before.cycles
    assert plain.train((text, text)) == again.train((text, text))


def squares(stash: str | None, forward: str, params: Any, batch: Any) -> Any:
    """The sum of p (x w)^2: all numbers are integers, and sums of them exact."""
    f = nn.checkpoint(lambda p, h: nn.reduce_sum(nn.square(h) * p), stash, forward)
    return f(params["p"], batch @ params["w"])


@pytest.mark.parametrize("forward", ["exact", "stashed"])
@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_are_those_of_values_rounded_to_nearest(forward: str, engine: str, micro_batches: int) -> None:
    rng = np.random.default_rng(2)
    w, p = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((4, 8), (8,)))
    x = rng.integers(-9, 9, (6, 4)).astype(np.float32)
    made = TrainLoop(partial(squares, "float8_e4m3fn", forward), {"w": w, "p": p}, x, optimizer=Sgd(1.0),
                     precision="fp32.32", engine=engine, target=TARGET, micro_batches=micro_batches)  # fmt: skip
    h = x @ w
    kept = lowprec.round(h, "float8_e4m3fn")
    assert (kept != h).any()
    on = h if forward == "exact" else kept
    assert made.train(x) == np.square(on).dot(p).sum() / micro_batches
    np.testing.assert_array_equal(made.params["p"], p - np.square(kept).sum(0) / micro_batches)
    np.testing.assert_array_equal(made.params["w"], w - x.T @ (2 * kept * p) / micro_batches)


def test_a_training_says_the_stash_of_parts_that_do_not() -> None:
    settings: dict[str, Any] = {"precision": "fp16.16/stochastic", "engine": "direct"}
    plain, wide, narrow = (loop("nn", stash=stash, **settings) for stash in (None, "float32", "float8_e4m3fn"))
    assert trained(plain) == trained(wide)  # what is kept has fewer bits already
    assert digest(plain) != digest(narrow)
    assert trained(plain) != trained(narrow)
    ways = [loop("nn", stash="float8_e4m3fn", **settings | other) for other in
            ({"reorder": False}, {"recompute": "blocks.*"}, {"recompute": True}, {"engine": "tiles"})]  # fmt: skip
    wanted = trained(loop("nn", stash="float8_e4m3fn", **settings))
    for way in ways:
        assert trained(way) == wanted
    kept = [e for e in equations_of(narrow.block) if e.op == "convert" and e.output.name.endswith(".stash")]
    assert len(kept) == 2
    with pytest.raises(ValueError, match=r"for parts that nn\.checkpoint marks, of which this model has none"):
        loop(None, stash="float16", **settings)


def test_a_stash_is_of_the_training_and_its_digest_where_there_is_one() -> None:
    plain, narrow = (Training(optimizer=Sgd(0.1), precision="fp32.32", stash=stash) for stash in (None, "float16"))
    assert "stash" not in plain.record()
    assert narrow.record()["stash"]
    assert plain.digest() != narrow.digest()
    assert "stashes in float16" in str(narrow)
    assert hash(plain) != hash(narrow)
    with pytest.raises(ValueError, match="wide has values that float32 lacks"):
        Training(optimizer=Sgd(0.1), precision="fp32.32", stash=WIDE)


@pytest.mark.parametrize(
    "given, says",
    [
        ((block, WIDE), "values that float32 lacks"),
        ((block, None, "stashed"), "say its format"),
        ((block, "float16", "both"), "forward must be 'exact' or 'stashed'"),
    ],
)
def test_a_stash_that_is_none_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        nn.checkpoint(*given)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="checkpoint takes a function"):
        nn.checkpoint(3)  # type: ignore[arg-type]


def test_a_format_without_a_sign_keeps_no_activations() -> None:
    for make in (
        lambda: nn.checkpoint(np.tanh, stash="float8_e8m0fnu"),
        lambda: Training(optimizer=Sgd(1), precision="fp32.32", stash="float8_e8m0fnu"),
    ):
        with pytest.raises(ValueError, match="float8_e8m0fnu keeps no activations: it has no sign"):
            make()
