"""A forward pass in one precision: the outputs of a function for trained parameters, on the tiles or directly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.engine.profile import Profile
from ipu_core.errors import OtherOrders
from ipu_core.ir.block import Block, Format, Type, is_wide
from ipu_core.ir.parameters import name_parameters
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.precision.rules import check_names
from ipu_core.ir.pytree import flatten, map_leaves, named, paths, unflatten
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.eager import as_array, format_of
from ipu_core.ir.trace.evaluation import evaluation
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.orders import OrderRule
from ipu_core.train.arguments import check_forward
from ipu_core.train.data.batches import BatchInputs
from ipu_core.train.execution import Execution
from ipu_core.train.keywords import PredictionOptions, takes
from ipu_core.train.options import foreign, prediction_of
from ipu_core.train.runner import Runner
from ipu_core.train.training import Arithmetic, Training
from ipu_core.train.units import check_finer, in_units, narrow_of
from lowprec import Key, as_key
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64
from lowprec.processor import in_default_state

EVALUATION = 2**32
"""Folded into a key (of a study: the key) for the random bits of predictions, beyond every step of a training run."""

USUAL = Execution(engine="direct")
"""Where a prediction runs by default."""


class Predictor:
    """A function of parameters and a batch in one precision; both engines give the same bits.

    Args:
        function: (params, batch) -> arrays, nested as it likes; with `model_state` (params, state, batch) -> arrays.
            Traced once.
        params: Parameters, as given to a `TrainLoop` or as its `params` gives them; rounded to nearest into the
            precision's weight format.
        batch: One batch, for its shapes and dtypes.
        training: A `Training` whose precision, control and rule of orders are taken (orders by number are those of a
            step); None: the options say them.
        execution: An `Execution`, whose engine and target are taken; None: the options say them.
        key: For stochastic rounding; prediction i rounds with a key of its own, which no training step has.
        model_state: What the model carries beside its parameters, as `TrainLoop.model_state` gives it.
        whole: Whether the function is all of a model, in which a rule of the precision for parts of another name is
            refused; False: a part of the model that was trained.
        **options: Where those are not given `precision`, `control`, `family`, `adder` and `order`, as of a `Training`,
            and `engine` ("direct" if nobody says) and `target`, as of an `Execution`. `target` says the family and the
            adder too.

    Dropout keeps all elements, as of a model that is evaluated.
    What is scaled by the amax of earlier steps in training ("delayed") is scaled by its own here, which has none.

    Raises:
        TypeError: a function that is none, lists where arrays are meant, or what tracing refuses.
        ValueError: an unknown engine or precision, a rule for nothing in the model, a precision finer than float32
            for what was captured in float32, or what tracing refuses.
        OutOfTileMemory: it does not fit the target (engine "tiles").

    Warns:
        OtherOrders: tiles of another family, or with another adder, than the Training whose orders they run.

    Attributes:
        block: The typed forward pass.
    """

    @takes(PredictionOptions, Arithmetic, USUAL)
    @in_default_state
    def __init__(
        self,
        function: Callable[..., Any],
        params: Any,
        batch: Any,
        *,
        training: Training | None = None,
        execution: Execution | None = None,
        key: Key | int = 0,
        model_state: Any = None,
        whole: bool = True,
        **options: Unpack[PredictionOptions],
    ) -> None:
        arithmetic, execution = prediction_of(training, execution, USUAL, **options)
        if execution.engine == "tiles" and (told := foreign(arithmetic, execution)):
            warnings.warn(told, OtherOrders, stacklevel=3)
        check_forward(function, batch)
        self.precision, self._key = arithmetic.precision, as_key(key).fold_in(EVALUATION)
        self._has_state = model_state is not None
        chip, control = execution.target, arithmetic.control

        scores = in_units(function, self.precision)

        # The state is handed through as in a training step: it stays where it lies, and only batches are fed.
        def forward(state: Any, given: Any) -> tuple[Any, Any]:
            return state, scores(*state, given)

        with evaluation():
            ideal = trace(forward, self._typed(params, model_state), map_leaves(as_array, batch), carry=True)
        names = paths(flatten(params)[1])
        # The trace names them by their place in a tuple, which no rule of a precision knows.
        ideal = name_parameters(ideal, dict(zip(ideal.inputs, names, strict=False)))
        if whole:
            check_names(self.precision.rules, ideal, names)
        typed = self.precision.apply(replace(ideal, carried=0), whole=False)  # what is carried are no amaxes
        check_finer(narrow_of(function), typed)
        self.block: Block = scheduled(replace(typed, carried=ideal.carried), chip)
        self._batch_inputs = BatchInputs(self.block, batch, numbers=0)
        # By the Training's rule, not the chip's, and the widths of the typed step: as training adds, so do predictions.
        orders = choose_accumulations(ideal, arithmetic.rule, typed)
        self._runner = Runner(self.block, chip, orders, control, execution.engine)
        self.write(params, model_state)

    def _typed(self, params: Any, model_state: Any) -> tuple[Any, ...]:
        """The state's types: weights in the precision's format, what the model carries as a training carries it."""
        # By name: a rule may keep some weights wide, and these must not be rounded here.
        own = [_kind(x, self.precision.weights_of(name)) for name, x in named(params)]
        weights = unflatten(flatten(params)[1], own)
        carried = FLOAT64 if is_wide(self.precision.rule("forward", "norm").output) else FLOAT32
        return (weights, map_leaves(lambda x: _kind(x, carried), model_state)) if self._has_state else (weights,)

    def write(self, params: Any, model_state: Any = None) -> None:
        """Takes other parameters, and another state where the model has one.

        Raises:
            ValueError: they are not nested as the first ones, or have other shapes.
        """
        if (model_state is not None) != self._has_state:
            raise ValueError("the model has a state: give it too" if self._has_state else "the model has no state")
        leaves, tree = flatten((params, model_state) if self._has_state else (params,))
        if tree != self.block.arguments[0]:
            raise ValueError("the parameters are not nested as those the function was traced with")
        inputs = self.block.inputs[: self.block.carried]
        self._runner.write([cast(as_array(x), var.type.format) for x, var in zip(leaves, inputs, strict=True)])

    @in_default_state
    def __call__(self, batch: Any, number: int = 0) -> Any:
        """The outputs for a batch, nested as the function gives them, floats in float32, of wide formats in float64.

        Args:
            batch: like the one it was traced with.
            number: of the prediction, which stochastic rounding depends on.

        Raises:
            ValueError, TypeError: a batch unlike the one that was traced.
        """
        outputs = self._runner.feed(self._batch_inputs(batch), self._key.fold_in(number))
        assert self.block.result is not None
        made = unflatten(self.block.result.children[1], outputs)
        return map_leaves(lambda x: x if x.dtype.kind in "iu" or x.dtype == np.float64 else x.astype(np.float32), made)

    @property
    def profile(self) -> Profile | None:
        """The machine's account of one prediction; None on the direct engine."""
        bill = self._runner.bill
        return None if bill is None else bill.profile(None)


def evaluated(function: Callable[..., Any], precision: Precision, rule: OrderRule, key: Key, *arguments: Any) -> Any:
    """Runs a function of a trained model once on arrays in their own formats, with the orders of sums of a rule."""
    with evaluation():
        ideal = trace(function, *arguments)
    # float64 is what wide weights are kept in, and not NumPy's default here
    own = [format_of(as_array(x)) for x in flatten(arguments)[0]]
    typed = precision.apply(ideal, whole=False, inputs=own if FLOAT64 in own else None)
    orders = choose_accumulations(ideal, rule, typed)
    return execute(typed, *arguments, key=key, accumulations=orders)


def _kind(leaf: Any, fmt: Format) -> Type:
    """The type of a float leaf of a state."""
    array = as_array(leaf)
    return Type(array.shape, "int32" if format_of(array) == "int32" else fmt)
