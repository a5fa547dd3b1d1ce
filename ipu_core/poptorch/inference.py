"""`inferenceModel`: a module that gives its outputs when it is called."""

from __future__ import annotations

from typing import Any

from ipu_core.engine.profile import Profile
from ipu_core.frontends.torch.model import TorchModel, captured
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.poptorch.executor import NOT_COMPILED, PoplarExecutor, control_of, parts_of, tensors_of
from ipu_core.poptorch.options import Options
from ipu_core.poptorch.outputs import combined, of_replicas
from ipu_core.poptorch.settings import in_float32, precision_of
from ipu_core.poptorch.stages import warn_of_inference
from ipu_core.poptorch.words import INFERENCE_NOT_HERE, MODEL_NOT_HERE, OutputMode
from ipu_core.train.predictor import Predictor


def inferenceModel(model: Any, options: Options | None = None) -> InferenceModel:
    """A module that gives its outputs, in eval mode, when it is called; its weights are those of then.

    Raises:
        TypeError: no module or options.
        ValueError: options with gradient accumulation.
    """
    return InferenceModel(model, options)


class InferenceModel(PoplarExecutor):
    """See `inferenceModel`.

    Attributes:
        predictor: what runs; None before it is compiled.
    """

    _not_here = MODEL_NOT_HERE | INFERENCE_NOT_HERE

    def __init__(self, model: Any, options: Options | None) -> None:
        super().__init__(model, options)
        if self.options.Training.gradient_accumulation > 1:
            raise ValueError("an inferenceModel has gradientAccumulation(1): options.clone() may be changed")
        self._calls = 0
        self._captured: TorchModel | None = None
        self.predictor: Predictor | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's outputs for the rows of all iterations, as tensors nested as the module nests them.

        Raises:
            ValueError: rows that cannot be cut into so many parts, or what `from_torch` and `Predictor` refuse.
            OutOfTileMemory: it does not fit the target.
        """
        batches, replicas = self._batches(inputs, named), self.options.replication_factor
        self._compile(batches)
        assert self.predictor is not None
        # PopTorch's users train and infer in turn with one module: without this the weights of before would answer
        if self._versions() != self._written:
            self.copyWeightsToDevice()
        self._attached = True
        outputs = [flatten(self.predictor(tensors_of(batch), self._calls + number))
                   for number, batch in enumerate(batches)]  # fmt: skip
        self._calls += len(batches)
        # PopTorch's default of inference; of training it is the last batch's
        mode = OutputMode.All if self.options.output_mode == OutputMode.Default else self.options.output_mode
        every = [leaves for leaves, _ in outputs]
        if replicas > 1:
            every = [of_replicas(every[first : first + replicas]) for first in range(0, len(every), replicas)]
        found = combined(every, mode, self.options.output_return_period)
        assert self._captured is not None
        return self._captured.exported.remake(unflatten(outputs[0][1], found))

    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""
        return self.predictor is not None

    def copyWeightsToDevice(self) -> None:
        """Takes the weights and buffers of the module as they are now; a call does so where they were written to.

        Raises:
            ValueError: it is not compiled.
        """
        if self.predictor is None or self._captured is None:
            raise ValueError(NOT_COMPILED)
        self.predictor.write(*self._captured.from_state_dict(self.model.state_dict()))
        self._written = self._versions()

    def destroy(self) -> None:
        """Lets go of what was compiled."""
        self.predictor, self._attached = None, False

    @property
    def profile(self) -> Profile | None:
        """The account of an iteration; None before it is compiled and on the direct engine."""
        return None if self.predictor is None else self.predictor.profile

    def _batches(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        # rows lie by iteration and then by replica; each replica's are a batch, with random bits of its own
        replicas = self.options.replication_factor
        return [part for batch in super()._batches(inputs, named) for part in parts_of(batch, replicas)]

    def _versions(self) -> list[tuple[int, int]]:
        # torch counts writes in place in _version; another tensor in the old one's place has another id
        return [(id(x), x._version) for x in (*self.model.parameters(), *self.model.buffers())]

    def _compile(self, batches: list[Any]) -> None:
        if self.predictor is not None:
            return
        options, precision = self.options, precision_of(self.options, self.model)
        warn_of_inference(self.model, options.strategy)
        # captured in float32, as all modules are: the precision says the formats
        with in_float32(self.model):
            model = captured(self.model, batches[0], inference=True, like=self._like)
        self.predictor = Predictor(
            model, model.params, tensors_of(batches[0]), precision=precision, engine=options.engine,
            target=options.target, key=options.random_seed, model_state=model.state, control=control_of(options),
        )  # fmt: skip
        self._captured, self._written = model, self._versions()
