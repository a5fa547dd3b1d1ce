"""Sensible arguments of what trains: loops, optimizers, callbacks, studies, predictors."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import ipu_core
from ipu_core import (
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Asgd,
    Lamb,
    Lars,
    Lion,
    NAdam,
    RAdam,
    RmsProp,
    Rprop,
    Sgd,
    nn,
    poptorch,
)
from tests.fuzz.block_calls import PRECISIONS, batch_of, loss, parameters
from tests.fuzz.machine_calls import FEW, Arguments, Calls
from tests.fuzz.wild import Draw

MOST = 3  # steps


def _settings(d: Draw) -> Arguments:
    return {
        "loss": loss, "params": parameters(), "batch": batch_of(d.integer(1, 4)),
        "optimizer": d.one_of((Sgd(0.1), Adam(1e-3), Lamb(1e-3), Lars(0.1, momentum=0.9))), "target": FEW,
        "precision": d.one_of(PRECISIONS), "engine": d.one_of(("direct", "direct", "tiles")), "key": d.integer(0, 9),
        **d.one_of(({}, {"loss_scale": 2.0}, {"loss_scale": "automatic"}, {"micro_batches": 1}, {"overlap": True},
                    {"steps_per_call": 2}, {"watch": 2}, {"recompute": False}, {"on_nonfinite": "ignore"},
                    {"streamed": "params.*"}, {"random": "philox"}, {"reorder": False}, {"accumulations": {}},
                    {"control": ipu_core.FloatingPointControl(nanoo=True)}, {"model_state": None})),
    }  # fmt: skip


def _clone(d: Draw) -> Arguments:
    return {
        "loss": loss, "params": parameters(), "optimizer": d.one_of((Sgd(0.1), Adam(1e-3))), "key": d.integer(0, 9),
        "precision": d.one_of(PRECISIONS), "tiles": d.one_of((None, 2)), "name": d.one_of(("", "a")),
    }  # fmt: skip


def _cloned(**settings: Any) -> Any:
    """Clones that do a step."""
    made = ipu_core.Clones(**settings)
    return made.run([settings["batch"]], 1), str(made)


def train(**settings: Any) -> Any:
    """A loop that does a step."""
    return ipu_core.TrainLoop(**settings).train(settings["batch"])


@cache
def _made(**how: Any) -> ipu_core.TrainLoop:
    return ipu_core.TrainLoop(
        loss, parameters(), batch_of(2), optimizer=Sgd(0.1, momentum=0.9), precision="fp16.32", engine="direct",
        target=FEW, **how,
    )  # fmt: skip


def loop() -> ipu_core.TrainLoop:
    """A loop as it was before anything happened to it."""
    return copy.copy(_made())


def _watched() -> ipu_core.Record:
    watching = copy.deepcopy(_made(watch=1))
    watching.train(batch_of(2))
    record = watching.watched
    assert record is not None
    return record


def _on(holder: Callable[[], Any], name: str) -> Callable[..., Any]:
    return lambda **given: getattr(holder(), name)(**given)


def _soon(f: Callable[..., Any]) -> Callable[..., Any]:
    """A number of steps is one that ends soon: what is asked to go on for years does."""

    def call(**given: Any) -> Any:
        for name in {"steps", "seeds"} & given.keys():
            if isinstance(given[name], int | np.integer) and given[name] > MOST:
                given[name] = type(given[name])(MOST)
        return f(**given)

    return call


def _in_a_folder(f: Callable[..., Any]) -> Callable[..., Any]:
    """Paths are names in a folder that is thrown away."""

    def call(path: Any, **given: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return f(path=Path(folder) / path if isinstance(path, str) else path, **given)

    return call


def _saved(path: Any) -> Any:
    loop().save(path)
    return loop().load(path)


def _watch_file(path: Any) -> Any:
    _watched().save(path)
    return ipu_core.Record.read(path)


def _study(d: Draw) -> Arguments:
    return {"loss": loss, "params": parameters(), "batches": [batch_of(2)], "precisions": [d.one_of(PRECISIONS)],
            "optimizer": Sgd(0.1), "engine": "direct", "target": FEW, "steps": 1, "seeds": 1,
            **d.one_of(({}, {"threads": 1}, {"title": "a"}, {"evaluate": lambda params, precision: {"a": 1.0}},
                        {"watch": 1}, {"streamed": ()}, {"random": "philox"}, {"micro_batches": 1},
                        {"on_nonfinite": "stop"}, {"recompute": False}, {"family": "mk2"}))}  # fmt: skip


def _rates(d: Draw) -> Arguments:
    return {"lr": d.one_of((0.1, lambda step: 0.1)), "weight_decay": d.one_of((0.0, 0.01)),
            **d.one_of(({}, {"clip_norm": 1.0}, {"clip_value": 1.0}, {"kahan": True},
                        {"exclude": lambda name, shape: False},
                        {"groups": (ipu_core.Group("w*", d.one_of((0.5, lambda step: 0.1))),)}))}  # fmt: skip


def _adam(d: Draw) -> Arguments:
    return {**_rates(d), "b1": 0.9, "b2": 0.99, "eps": 1e-8, "bias_correction": d.chance(0.5), "amsgrad": d.chance(0.3)}


def _update(optimizer: Any) -> Callable[..., Any]:
    """What an optimizer makes of parameters and gradients, on arrays."""
    return lambda params, gradients, lr: optimizer.update(params, gradients, optimizer.init(params), lr)


def _forward(params: Any, batch: Any) -> Any:
    return nn.linear(batch, params["w"], params["b"])


def predictor() -> ipu_core.Predictor:
    """Of the first layer."""
    return copy.copy(_predictor())


@cache
def _predictor() -> ipu_core.Predictor:
    return ipu_core.Predictor(_forward, parameters(), np.ones((2, 3), "f4"), precision="fp16.16/nearest", target=FEW)


def _state_dict(d: Draw) -> Arguments:
    return {"arrays": loop().arrays(), "step": d.integer(0, 3), "history": d.one_of((None, loop().history()))}


def _training(d: Draw) -> Arguments:
    return {"optimizer": d.one_of((Sgd(0.1), Adam(0.1))), "precision": d.one_of(PRECISIONS), "loss_scale": 2.0,
            "micro_batches": d.integer(1, 3), "accumulations": {3: ipu_core.Accumulation(group=8)},
            "family": d.one_of(("mk1", "mk2")), "adder": "dot4", "order": "1",
            "random": d.one_of(("philox", "hardware")),
            "control": d.one_of((None, ipu_core.FloatingPointControl(nanoo=True)))}  # fmt: skip


def _execution(d: Draw) -> Arguments:
    return {"engine": d.one_of(("direct", "tiles")), "target": d.one_of((FEW, "bow")), "overlap": d.chance(0.5),
            "streamed": d.one_of(((), "params.*")), "reorder": d.chance(0.5), "recompute": d.one_of((False, 0.5)),
            "steps_per_call": d.integer(1, 3)}  # fmt: skip


def _told(kind: Callable[..., Any]) -> Callable[..., Any]:
    """A value made, printed and told apart."""

    def made(**given: Any) -> Any:
        value = kind(**given)
        return str(value), hash(value), value == value, value.record()

    return made


def _emulated(**given: Any) -> Any:
    with ipu_core.emulate(**given):
        return 0


def _few(d: Draw) -> Arguments:
    return {"loop": loop(), "batches": [batch_of(2)], "steps": 1}


def _of_loop() -> Calls:
    return {
        "TrainLoop": (train, _settings),
        "TrainLoop.train": (_on(loop, "train"), lambda d: {"batch": batch_of(2)}),
        "TrainLoop.run": (_soon(_on(loop, "run")), lambda d: {
            "batches": d.one_of(([batch_of(2)], lambda step: batch_of(2), ipu_core.Epochs([batch_of(2)]))), "steps": 1,
            "callbacks": d.one_of(((), [ipu_core.Evaluate(lambda params: 1.0, every=1)], [lambda loop, loss: None]))}),
        "TrainLoop.in_precision": (_on(loop, "in_precision"), lambda d: {"precision": d.one_of(PRECISIONS)}),
        "TrainLoop.next_step": (_on(loop, "next_step"), lambda d: {"batch": batch_of(2)}),
        "TrainLoop.predict": (_on(loop, "predict"), lambda d: {"forward": _forward, "inputs": np.ones((2, 3), "f4")}),
        "TrainLoop.to_torch": (_on(loop, "to_torch"), lambda d: {"module": None}),
        "TrainLoop.count_updates": (_on(loop, "count_updates"), lambda d: {"batch": batch_of(2)}),
        "TrainLoop.precision_table": (_on(loop, "precision_table"), lambda d: {"width": d.integer(40, 120)}),
        "TrainLoop.resume": (_on(loop, "resume"), lambda d: {"state": loop().state}),
        "TrainLoop.restore": (_on(loop, "restore"), _state_dict),
        "TrainLoop.save": (_in_a_folder(_saved), lambda d: {"path": d.one_of(("a.npz", "a", "a.safetensors"))}),
        "TrainLoop.load": (_in_a_folder(lambda path: loop().load(path)), lambda d: {"path": "nothing"}),
        "Clone": (ipu_core.Clone, lambda d: _clone(d)),
        "Clones": (_cloned, lambda d: {
            "models": [ipu_core.Clone(**_clone(d))], "batch": batch_of(2), "target": FEW, "engine": "direct"}),
        "TrainLoop.words": (_on(loop, "words"), lambda d: {}),
        "TrainLoop.sums": (_on(loop, "sums"), lambda d: {}),
        "Predictor": (ipu_core.Predictor, lambda d: {
            "function": _forward, "params": parameters(), "batch": np.ones((2, 3), "f4"), "target": FEW,
            "precision": d.one_of(PRECISIONS), "engine": d.one_of(("direct", "tiles")), "key": 3}),
        "Predictor.write": (_on(predictor, "write"), lambda d: {"params": parameters()}),
        "Predictor.__call__": (_on(predictor, "__call__"), lambda d: {"batch": np.ones((2, 3), "f4"), "number": 1}),
    }  # fmt: skip


KINDS = (Sgd, Lars, Asgd, Adam, AdamW, NAdam, RAdam, Adamax, Lamb, RmsProp, Adagrad, Adadelta, Adafactor, Lion, Rprop)


def _around() -> Calls:
    return {
        "Sgd": (Sgd, lambda d: {**_rates(d), "momentum": 0.9, "nesterov": d.chance(0.5)}),
        "Lars": (Lars, lambda d: {**_rates(d), "momentum": 0.9, "trust": 0.001}),
        "Asgd": (Asgd, lambda d: {**_rates(d), "lambd": 1e-4, "alpha": d.one_of((0.75, 1, 0)), "t0": 2}),
        **{kind.__name__: (kind, _adam) for kind in (Adam, AdamW, Lamb)},
        "NAdam": (NAdam, lambda d: {**_rates(d), "b1": 0.9, "b2": 0.99, "momentum_decay": d.one_of((None, 4e-3))}),
        "RAdam": (RAdam, lambda d: {**_rates(d), "b1": 0.9, "threshold": 5, "eps_corrected": d.chance(0.5)}),
        "Adamax": (Adamax, lambda d: {**_rates(d), "b1": 0.9, "b2": 0.99, "eps": 1e-8, "scaled_state": 2.0}),
        "RmsProp": (RmsProp, lambda d: {**_rates(d), "momentum": 0.9, "nesterov": d.chance(0.5), "decay": 0.9,
                                        "centered": d.chance(0.5), "eps_in_root": d.chance(0.5), "initial": 0.1}),
        "Adagrad": (Adagrad, lambda d: {**_rates(d), "eps_in_root": d.chance(0.5), "initial": 0.1}),
        "Adadelta": (Adadelta, lambda d: {**_rates(d), "decay": 0.9, "eps": 1e-6}),
        "Adafactor": (Adafactor, lambda d: {**_rates(d), "beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "d": 1}),
        "Rprop": (Rprop, lambda d: {"lr": 0.1, "shrink": 0.5, "grow": 1.2, "least": 1e-6, "most": 50}),
        "Lion": (Lion, lambda d: {**_rates(d), "b1": 0.9, "b2": 0.99}),
        **{f"{kind.__name__}.init": (kind(0.1).init, lambda d: {"params": parameters()})
           for kind in KINDS},
        **{f"{kind.__name__}.update": (_update(kind(0.1)), lambda d: {
            "params": parameters(), "gradients": parameters(), "lr": 0.1}) for kind in KINDS},
        "Sgd.decayed": (Sgd(0.1).decayed, lambda d: {"name": "w", "w": np.ones(3, "f4"), "x": np.ones(3, "f4")}),
        "Adam.for_precision": (Adam(0.1).for_precision, lambda d: {"scaled_state": 2.0, "store_root": d.chance(0.5)}),
        "Group": (ipu_core.Group, lambda d: {"pattern": "w*", "lr": 0.5, "decay": 0.1, "frozen": d.chance(0.5)}),
        "mup_groups": (lambda others, **given: ipu_core.mup_groups(*given.values(), *others), lambda d: {
            "loss": ipu_core.unit_scale(loss, mup=True), "params": parameters(), "others": [batch_of(2)]}),
        "Training": (_told(ipu_core.Training), _training),
        "Execution": (_told(ipu_core.Execution), _execution),
        "LossScale": (ipu_core.LossScale, lambda d: {
            "init_scale": 2.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}),
        "Watch": (ipu_core.Watch, lambda d: {"every": d.integer(1, 9), "path": None, "values": ("*",)}),
        "Watch.of": (ipu_core.Watch.of, lambda d: {"spec": d.integer(1, 9)}),
        "Epochs": (ipu_core.Epochs, lambda d: {"source": [batch_of(2)]}),
        "Epochs.epoch": (ipu_core.Epochs(lambda number: [batch_of(2)]).epoch, lambda d: {"number": 0}),
        "Samples": (ipu_core.Samples, lambda d: {"dataset": [np.ones(3, "f4")] * 5, "rows": d.integer(1, 5)}),
        "Samples.seeded": (ipu_core.Samples([1.0] * 5, 2).seeded, lambda d: {"seed": 0}),
        "Samples.__call__": (ipu_core.Samples([1.0] * 5, 2), lambda d: {"seed": 0, "step": 1}),
        "Checkpoint": (ipu_core.Checkpoint, lambda d: {"path": "a.npz", "every": 3}),
        "Evaluate": (ipu_core.Evaluate, lambda d: {"metric": lambda params: 1.0, "every": 3}),
        "Evaluate.restore": (ipu_core.Evaluate(print).restore, lambda d: {"state": [(1, {"a": 2.0})]}),
        "EarlyStop": (ipu_core.EarlyStop, lambda d: {
            "evaluate": ipu_core.Evaluate(print), "name": "a", "patience": 3, "larger": d.chance(0.5), "least": 0.1}),
        "EarlyStop.restore": (ipu_core.EarlyStop(ipu_core.Evaluate(print)).restore, lambda d: {
            "state": {"best": (1.0, 2), "seen": 1, "without": 0}}),
        "emulate": (_emulated, lambda d: {"precision": d.one_of(PRECISIONS), "key": 0}),
        "poptorch.Options": (poptorch.Options, lambda d: {
            "precision": "fp16.16/nearest", "target": FEW, "engine": "tiles"}),
    }  # fmt: skip


def _of_record() -> Calls:
    return {
        "Record.read": (_in_a_folder(_watch_file), lambda d: {"path": "watch"}),
        "Record.index": (_on(_watched, "index"), lambda d: {"name": str(_watched().values["name"][0])}),
        "Record.share": (_on(_watched, "share"), lambda d: {"measure": d.one_of(("underflow", "overflow"))}),
        "Record.worst": (_on(_watched, "worst"), lambda d: {"count": d.integer(0, 9)}),
        "Record.table": (_on(_watched, "table"), lambda d: {"count": d.integer(0, 9), "title": "a"}),
    }


def _sampled(draws: Any, warm_up: Any, **given: Any) -> Any:
    sampler = ipu_core.Hmc(lambda q: -(q * q).sum(axis=1), **given)
    sampler.warm_up(min(warm_up, MOST) if isinstance(warm_up, int) else warm_up)
    return sampler.run(min(draws, MOST) if isinstance(draws, int) else draws).table()


HEAVY: Calls = {
    "custom_gradient": (ipu_core.custom_gradient, lambda d: {
        "f": lambda x: (x, None), "backward": lambda kept, dy: (dy,)}),
    "recompute_curve": (ipu_core.recompute_curve, lambda d: {
        "loss": loss, "params": parameters(), "batch": batch_of(2), "optimizer": Sgd(0.1), "target": FEW,
        "precision": d.one_of(PRECISIONS), "regions": "w*"}),
    "compare": (_soon(ipu_core.compare), _study),
    "sweep": (_soon(ipu_core.sweep), lambda d: {
        "loss": loss, "params": parameters(), "batches": [batch_of(2)], "optimizer": Sgd(0.1), "steps": 1, "seeds": 1,
        "axes": d.one_of(({"weights": "e8m3 ... e8m2"}, {"lr": [0.1]}, {"group": [4]}, {"rounding": "odd"})),
        "search": d.one_of(("grid", "each", "bisect")), "engine": "direct"}),
    "blame": (_soon(ipu_core.blame), _few),
    "Hmc": (_sampled, lambda d: {
        "start": np.zeros((d.integer(1, 3), 2), "f4"), "leapfrog": d.integer(1, 3), "step_size": d.one_of((0.1, 0.5)),
        "jitter": d.one_of((0, 0.5)), "key": d.integer(0, 9), "draws": d.integer(1, 3), "warm_up": d.integer(1, 12),
        "precision": d.one_of(("fp32.32", "fp16.16/stochastic", "float64"))}),
    "recipe": (ipu_core.recipe, lambda d: {
        "name": "mlperf-bert-v2", "chips": d.one_of((16, 64, 128)), "learning_rate": 0.01,
        "gradient_sum": d.one_of(("float32", "running_mean"))}),
    "diverge": (ipu_core.diverge, lambda d: {
        "loop_a": loop(), "loop_b": loop(), "batches": [batch_of(2)] * d.integer(0, 2)}),
    "sensitivity": (_soon(ipu_core.sensitivity), lambda d: {**_few(d), "by": d.one_of(("layer", "cause"))}),
    "cheapest": (_soon(ipu_core.cheapest), lambda d: {**_few(d), "choices": ["fp16.16/nearest", "fp32.32"]}),
    "from_jax": (ipu_core.from_jax, lambda d: {
        "loss": lambda params, batch: (params["w"] * batch).sum(), "params": {"w": np.ones(3, "f4")},
        "batch": np.ones(3, "f4")}),
    "from_optax": (ipu_core.from_optax, lambda d: {"optimizer": object(), "params": {"w": np.ones(3, "f4")}}),
    "from_torch": (ipu_core.from_torch, lambda d: {"module": object(), "example_inputs": np.ones(3, "f4")}),
    "from_torch_optimizer": (ipu_core.from_torch_optimizer, lambda d: {"model": object(), "optimizer": object()}),
    "TorchSchedule": (ipu_core.TorchSchedule, lambda d: {"scheduler": object(), "every": 1}),
    "poptorch.trainingModel": (poptorch.trainingModel, lambda d: {
        "model": object(), "options": poptorch.Options(), "optimizer": object()}),
    "poptorch.inferenceModel": (poptorch.inferenceModel, lambda d: {"model": object()}),
}  # fmt: skip
CALLS: Calls = {**_of_loop(), **_around(), **_of_record()}
