"""ResNet-50 (He et al., arXiv 1512.03385) with the settings that were published."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.ir.block import Type
from ipu_core.study.point import stand_in
from ipu_core.train.optim import Sgd
from ipu_core.workloads.published import NORMS_OF_HALVES, Measured, Part, Stage, Workload
from lowprec import float16 as FLOAT16
from lowprec.checks import integer

BLOCKS = (3, 4, 6, 3)
SIDE, CLASSES, EXPANSION = 224, 1000, 4


def _convolution(kernel: int, inputs: int, outputs: int) -> Any:
    norm = {"scale": stand_in(outputs), "bias": stand_in(outputs, zero=True)}
    return {"weight": stand_in(kernel, kernel, inputs, outputs), "norm": norm}


def _statistics(tree: Any) -> Any:
    if "norm" in tree:
        channels = tree["norm"]["scale"].shape[0]
        return {"mean": stand_in(channels, zero=True), "variance": stand_in(channels)}
    return {name: _statistics(part) for name, part in tree.items()}


def _normed(params: Any, state: Any, x: Any, stride: int = 1) -> tuple[Any, Any]:
    kernel = params["weight"].shape[0]
    y = nn.conv2d(x, params["weight"], stride=stride, padding=kernel // 2)
    return nn.batch_norm(y, params["norm"]["scale"], params["norm"]["bias"], state, training=True)


def _stem(params: Mapping[str, Any], _: Any, batch: Any) -> tuple[Any, Any]:
    y, new = _normed(params["stem"]["convolution"], params["state"]["convolution"], batch["images"], 2)
    # Nothing behind a relu is below the zeros of a border.
    around = np.pad(nn.relu(y), ((0, 0), (1, 1), (1, 1), (0, 0)))
    return nn.max_pool2d(around, 3, 2), {"convolution": new}


def _block(name: str, stride: int, params: Mapping[str, Any], x: Any, _: Any) -> tuple[Any, Any]:
    own, state, new = params[name], params["state"], {}
    y, new["first"] = _normed(own["first"], state["first"], x)
    y, new["second"] = _normed(own["second"], state["second"], nn.relu(y), stride)
    y, new["third"] = _normed(own["third"], state["third"], nn.relu(y))
    if "short" in own:
        x, new["short"] = _normed(own["short"], state["short"], x, stride)
    return nn.relu(x + y), new


def _head(params: Mapping[str, Any], x: Any, batch: Any) -> Any:
    scores = nn.linear(nn.mean(x, (1, 2)), **params["head"])
    return nn.cross_entropy(scores, batch["labels"], label_smoothing=0.1)


def resnet50(micro_batch: int = 20, target: str = "gc200") -> Workload:
    """ResNet-50 on images of 224 x 224, one chip a replica, as MLPerf and the 2017 talk ran it.

    Args:
        micro_batch: images.
        target: "gc200" or "bow": micro-batches and recomputation of MLPerf v1.1 and v2.0; "gc2": of the talk, an update
            after every batch.
    """
    integer("micro_batch", micro_batch, 1)
    parts, inputs = [Part("stem", {"convolution": _convolution(7, 3, 64)}, _stem, layer=True)], 64
    for stage, count in enumerate(BLOCKS):
        width = 64 << stage
        for number in range(count):
            name, outputs = f"stages.{stage}.{number}", EXPANSION * width
            params = {
                "first": _convolution(1, inputs, width), "second": _convolution(3, width, width),
                "third": _convolution(1, width, outputs),
            }  # fmt: skip
            if number == 0:
                params["short"] = _convolution(1, inputs, outputs)
            stride = 2 if stage and not number else 1
            parts.append(Part(name, params, functools.partial(_block, name, stride), layer=True))
            inputs = outputs
    head = {"weight": stand_in(inputs, CLASSES), "bias": stand_in(CLASSES, zero=True)}
    parts.append(Part("head", head, _head))
    talk = target == "gc2"
    return Workload(
        name="resnet50", title=f"ResNet-50, {micro_batch} x {SIDE} x {SIDE}", parts=tuple(parts),
        batch={
            "images": Type((micro_batch, SIDE, SIDE, 3), FLOAT16), "labels": Type((micro_batch,), "int32"),
        },
        model_state={part.name: _statistics(part.params) for part in parts[:-1]},
        stages=(Stage("the whole net", tuple(part.name for part in parts)),),
        target=target, precision="fp16.16/stochastic/first_moment=float16/norms=operands",
        optimizer=Sgd(0.1, momentum=0.9), rows=micro_batch,
        micro_batches=1 if talk else {"gc200": 10, "bow": 10}.get(target, 10),
        recompute="layers", lean_norms=True,
        update_overhead={"gc200": 0.58e-3, "bow": 1.50e-3}.get(target, 0.0), logged="" if talk else "resnet",
        overhead_run={"gc200": "MLPerf v1.1, 64 GC200 chips", "bow": "MLPerf v2.0, 64 Bow chips"}.get(target, ""),
        sources=(
            "layers: He et al., arXiv 1512.03385, table 1, the stride of a block in its 3 x 3 convolution (v1.5)",
            "MLPerf Training v1.1 and v2.0, closed: one chip a replica, micro-batch 20, recomputation; the "
            "accumulation of 16 chips; batch norm there is over two chips, here over one; LARS is plain momentum here",
            NORMS_OF_HALVES,
            "images arrive as halves; the momentum has the weights' type, as slots of TensorFlow's optimizers have; on "
            "GC2 that layers are made again is taken too",
        ),
        measured=(
            Measured((13.8e6, 13.8e6), "gc200", 1, 20, "MLPerf v1.1 logs, 10.43 ms a micro-batch (SDK 2.3)"),
            Measured((11.7e6, 11.7e6), "bow", 1, 20, "MLPerf v2.0 logs, 6.33 ms a micro-batch (SDK 2.5)"),
            Measured((5.69e6, 5.69e6), "gc2", 1, 4, "2017 talk: 2,250 images a second on a card of two, batch 8"),
        ),
    )  # fmt: skip
