"""DeepBench's LSTM and WaveNet's generation, of the 2017 talk: nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipu_core import nn
from ipu_core.ir.block import Type
from ipu_core.study.point import stand_in
from ipu_core.workloads.published import Measured, Part, Stage, Workload
from lowprec import float16 as FLOAT16
from lowprec.checks import integer

PLACES, HIDDEN = 50, 1536
LAYERS, RESIDUAL, SKIP, SAMPLES = 20, 64, 128, 256


def _lstm(params: Mapping[str, Any], _: Any, batch: Any) -> Any:
    own = params["lstm"]

    def place(state: Any, x: Any) -> Any:
        new = nn.lstm_cell(own, x, state)
        return new, new[0]

    return nn.scan(place, (batch["hidden"], batch["cell"]), batch["x"])[1]


def lstm_deepbench(micro_batch: int = 210) -> Workload:
    """The forward pass of DeepBench's LSTM, 1,536 wide, 50 places; inputs and results lie on the chip.

    Args:
        micro_batch: rows.
    """
    integer("micro_batch", micro_batch, 1)
    weights = {"input": stand_in(HIDDEN, 4 * HIDDEN), "hidden": stand_in(HIDDEN, 4 * HIDDEN),
               "bias": stand_in(4 * HIDDEN, zero=True)}  # fmt: skip
    state = Type((micro_batch, HIDDEN), FLOAT16)
    return Workload(
        name="lstm-deepbench", title=f"LSTM of {HIDDEN:,}, {PLACES} places, {micro_batch} rows",
        parts=(Part("lstm", weights, _lstm),),
        batch={"x": Type((PLACES, micro_batch, HIDDEN), FLOAT16), "hidden": state, "cell": state},
        stages=(Stage("the whole net", ("lstm",)),),
        target="gc2", precision="fp16.16/nearest", optimizer=None, rows=micro_batch,
        sources=(
            "2017 talk: 1,536 hidden, 50 steps, 60,000 iterations a second on a card of two chips at 7 ms: 210 rows a "
            "chip. That it is the forward pass follows from the chip's peak, which training would exceed",
            "formats and rounding are not said",
        ),
        measured=(Measured((11.2e6, 11.2e6), "gc2", 1, 210, "2017 talk: 7 ms at 1.6 GHz"),),
    )  # fmt: skip


def _layer(number: int, params: Any, h: Any, past: Any) -> tuple[Any, Any]:
    own = params[f"{number}"]
    # A dilated convolution of two places: one from the past, which a ring of them gives, and this one.
    sums = nn.linear(nn.concatenate((past[number], h), 1), **own["gate"])
    gated = nn.tanh(sums[:, :RESIDUAL]) * nn.sigmoid(sums[:, RESIDUAL:])
    made = nn.linear(gated, **own["out"])
    return h + made[:, :RESIDUAL], made[:, RESIDUAL:]


def _wavenet(params: Mapping[str, Any], _: Any, batch: Any) -> Any:
    own = params["wavenet"]
    h, skip = nn.embedding(own["first"], batch["sample"]), None
    for number in range(LAYERS):
        h, part = _layer(number, own["layers"], h, batch["past"])
        skip = part if skip is None else skip + part
    return nn.linear(nn.relu(nn.linear(nn.relu(skip), **own["before"])), **own["last"])


def wavenet(micro_batch: int = 300) -> Workload:
    """One sample of WaveNet's generation for several voices: 20 layers, 64 residual and 128 skip channels.

    Args:
        micro_batch: voices.
    """

    def linear(rows: int, columns: int) -> Any:
        return {"weight": stand_in(rows, columns), "bias": stand_in(columns, zero=True)}

    integer("micro_batch", micro_batch, 1)
    layer = {"gate": linear(2 * RESIDUAL, 2 * RESIDUAL), "out": linear(RESIDUAL, RESIDUAL + SKIP)}
    params = {
        "first": stand_in(SAMPLES, RESIDUAL), "layers": {f"{n}": layer for n in range(LAYERS)},
        "before": linear(SKIP, SKIP), "last": linear(SKIP, SAMPLES),
    }  # fmt: skip
    batch = {"sample": Type((micro_batch,), "int32"), "past": Type((LAYERS, micro_batch, RESIDUAL), FLOAT16)}
    return Workload(
        name="wavenet", title=f"WaveNet, a sample of {micro_batch} voices", parts=(Part("wavenet", params, _wavenet),),
        batch=batch, stages=(Stage("the whole net", ("wavenet",)),), target="gc2", precision="fp16.16/nearest",
        optimizer=None, rows=micro_batch,
        sources=(
            "2017 talk: 600 voices a card of two chips at 16 kHz, 20 layers, 64 residual and 128 skip channels",
            "not published: the layers behind the skips (two of 128 and 256 here), the quantisation (256 values), "
            "formats, rounding, and how the past is kept; drawing the sample is not in the account",
        ),
        measured=(Measured((100e3, 100e3), "gc2", 1, 300, "2017 talk: 16 kHz, 62.5 us a sample, at 1.6 GHz"),),
    )  # fmt: skip
