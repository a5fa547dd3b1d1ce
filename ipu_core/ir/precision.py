"""Precision: a table from (role, family) to formats, partials and rounding, and the pass that applies it to a step.

Preset names are operands.partials, as in FLOP/s figures: "fp16.32" multiplies float16 operands into float32 partials.
It keeps the weights in float32, "fp16.16" in float16: "fp16.16/nearest/weights=float32" varies the partials alone. (The
published performance tables of the machine mean compute type . master-weight type by the same shape of name.)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ipu_core.ir.block import Block
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.retype import Retype, Rule, cast
from ipu_core.ir.streaming import moments
from lowprec import FloatFormat, Rounding, aliases, as_format, formats
from lowprec import bfloat16 as BFLOAT16
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec.spec.rounding import NEAREST_EVEN, STOCHASTIC

PLAIN = frozenset({"add", "subtract", "multiply", "square"})
"""Half operations the machine does in half registers, apparently to nearest even even when stochastic rounding is on
(derived from comments in PopLibs). Everything else computes in float32 and converts, which is stochastic."""

ROUNDINGS: Mapping[str, Rounding] = {"nearest": NEAREST_EVEN, "stochastic": STOCHASTIC}
"""What the machine has, by the names of precisions."""


@dataclass(frozen=True)
class Precision:
    """The formats of a training step.

    Attributes:
        name: what to call it in tables.
        operands: activations, and everything that goes into a forward product.
        gradients: cotangents of activations and weights.
        partials: partial sums of products and reductions.
        output: results of products.
        weights: the weights that are kept (master weights) and updated.
        gradient_sum: the sum of gradients over micro-batches.
        first_moment, second_moment: the optimiser's stored moments.
        rounding: stochastic where the machine has it (see `PLAIN`), to nearest even elsewhere; or that everywhere.
        running_mean: micro-batch gradients are kept as a running mean, not as a sum.
        streamed: the moments live in streaming memory, those of one element excepted.
        scaled_state: what Adam's and LAMB's moments are kept times, and the second times its square: a power of two
            that moves them into a half's range. Optimisers with a `scaled_state` of their own keep theirs.

    Raises:
        TypeError: a format that is no FloatFormat.
        ValueError: a format with values that float32, the machine's widest, lacks; a rounding it does not have.
    """

    name: str
    operands: FloatFormat = FLOAT32
    gradients: FloatFormat = FLOAT32
    partials: FloatFormat = FLOAT32
    output: FloatFormat = FLOAT32
    weights: FloatFormat = FLOAT32
    gradient_sum: FloatFormat = FLOAT32
    first_moment: FloatFormat = FLOAT32
    second_moment: FloatFormat = FLOAT32
    rounding: Rounding = NEAREST_EVEN
    running_mean: bool = False
    streamed: bool = False
    scaled_state: float = 1.0

    def __post_init__(self) -> None:
        for field in FORMATS:
            fmt = getattr(self, field)
            if not isinstance(fmt, FloatFormat):
                raise TypeError(f"{field} must be a FloatFormat such as lowprec.float16, not {fmt!r}")
            if not FLOAT32.contains(fmt):
                raise ValueError(f"{field} cannot be {fmt.name}: it has values that float32, the widest here, lacks")
        if not isinstance(self.scaled_state, int | float) or not 0 < self.scaled_state <= LARGEST_SCALE:
            raise ValueError(f"scaled_state must be a number in (0, 2^60], not {self.scaled_state!r}")
        if self.rounding not in ROUNDINGS.values():
            raise ValueError(f"the machine rounds {' or '.join(ROUNDINGS)}, not as {self.rounding!r}")

    @property
    def rounding_name(self) -> str:
        """How its name says that it rounds, nearest or stochastic."""
        return next(name for name, rounding in ROUNDINGS.items() if rounding == self.rounding)

    @property
    def stochastic(self) -> bool:
        """Whether anything is rounded stochastically."""
        return self.rounding.stochastic

    @staticmethod
    def parse(spec: str | Precision) -> Precision:
        """A preset by name, with overrides: "fp32.32", "fp16.16/stochastic", "fp16.32/weights=float16".

        Raises:
            TypeError: neither a name nor a Precision.
            ValueError: an unknown preset, rounding, field or format; the message lists the valid ones.
        """
        if isinstance(spec, Precision):
            return spec
        if not isinstance(spec, str):
            raise TypeError(f"a precision is a name such as 'fp16.16/stochastic', or a Precision, not {spec!r}")
        name, *rest = spec.split("/")
        if "," in spec:
            raise ValueError(_with_commas(spec))
        if name not in PRESETS:
            raise ValueError(f"unknown precision {spec!r}{_meant(name)}; there are {', '.join(PRESETS)} {OVERRIDES}")
        precision = PRESETS[name]
        said = [word for word in rest if "=" not in word and word not in STREAMING]
        if name == "fp16.16" and not said:
            raise ValueError("'fp16.16' must say how it rounds: 'fp16.16/nearest' or 'fp16.16/stochastic'")
        for word in rest:
            precision = _override(precision, word, spec)
        return replace(precision, name=spec)

    def rule(self, role: str, family: str) -> Rule:
        """What the table says for an equation of that role and family."""
        backwards = role in ("grad_input", "grad_weight")
        results = self.gradients if backwards else self.operands
        match role, family:
            case "update", _:
                return Rule(self.weights, convert=False)
            case _, "compensation":
                return Rule(self.weights, convert=False)
            case _, "first_moment":
                return Rule(self.first_moment, convert=False)
            case _, "second_moment":
                return Rule(self.second_moment, convert=False)
            case _, "gradient_sum":
                return Rule(self.gradient_sum, convert=False)
            case "optimiser", _:
                return Rule(FLOAT32, convert=False)
            case _, "loss" | "norm" | "softmax":
                return Rule(FLOAT32, convert=False)
            case _, "matmul" | "conv":
                return Rule(self.output, self.partials)
            case _, "reduction":
                return Rule(results, self.partials)
            case _:
                return Rule(results)

    def rounding_of(self, op: str, operands: Sequence[FloatFormat], output: FloatFormat) -> Rounding:
        """How a rounded result of that operation is rounded."""
        if output.contains(FLOAT32) or (op in PLAIN and all(output.contains(fmt) for fmt in operands)):
            return NEAREST_EVEN
        return self.rounding

    def apply(self, block: Block) -> Block:
        """The Block with every equation typed by the table, and conversions where operands need them.

        Numbers of equations stay; conversions get fresh ones. The types of a carried state follow its new value.
        """
        typed = Retype(self, block).run()
        return replace(typed, streamed=typed.streamed | moments(typed)) if self.streamed else typed

    def cast_state(self, block: Block, state: Any) -> Any:
        """The initial state in the formats that a Block of this precision carries, rounded to nearest even.

        Args:
            block: what `apply` gave.
            state: nested as the Block's first argument.
        """
        leaves, tree = flatten(state)
        if len(leaves) != block.carried:
            raise ValueError(f"the step carries {block.carried} arrays, the state has {len(leaves)}")
        return unflatten(tree, [cast(x, var.type.format) for x, var in zip(leaves, block.inputs, strict=False)])

    def words(self) -> str:
        """The formats in one line."""
        shown = [f for f in fields(self) if f.name in FORMATS]
        formats = ", ".join(f"{f.name} {getattr(self, f.name).name}" for f in shown)
        scaled = f", moments times {self.scaled_state:g}" if self.scaled_state != 1 else ""
        return f"{self.name}: {formats}, {self.rounding_name}{scaled}"


def _with_commas(spec: str) -> str:
    """What to write in place of a name with commas."""
    first, *others = (word.strip() for word in spec.split(","))
    if any(word.split("/")[0] in PRESETS for word in others):
        return f"{spec!r} is several precisions where one is wanted; a list of them is {[first, *others]}"
    return f"settings of a precision are joined by '/', not ',': write {'/'.join([first, *others])!r}"


def _meant(name: str) -> str:
    """A question, for a name that is a format's or nearly a precision's."""
    known = "float8_e4m3fn" if name.lower() in ("fp8", "float8") else name.lower()
    fmt = formats.get(known) or aliases.get(known)
    short = name.lower() if fmt is None else SHORT.get(fmt.name, "fp8")
    near = [preset for preset in PRESETS if preset.startswith(short)] or difflib.get_close_matches(name, PRESETS, 2)
    if fmt is None:
        return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    one = near or [f"fp16.32/operands={fmt.name}"]
    return f": that is a format; a precision says what is multiplied and what is summed in, such as {', '.join(one)}"


def _override(precision: Precision, word: str, spec: str) -> Precision:
    word = "nearest" if word == "nearest_even" else word
    field, equals, value = word.partition("=")
    if word in STREAMING:
        return replace(precision, streamed=STREAMING[word])
    if not equals:
        if word not in ROUNDINGS:
            raise ValueError(f"unknown word {word!r} in {spec!r}; there are {', '.join((*ROUNDINGS, *STREAMING))}")
        return replace(precision, rounding=ROUNDINGS[word])
    if field == "moments":
        return _override(_override(precision, f"first_moment={value}", spec), f"second_moment={value}", spec)
    if field == "scaled_state":
        number: Any = _number(value)
        return replace(precision, scaled_state=number)
    if field not in FORMATS:
        raise ValueError(f"unknown field {field!r} in {spec!r}; there are {', '.join(FORMATS)}, moments, scaled_state")
    changes: dict[str, Any] = {field: as_format(value)}
    return replace(precision, **changes)


def _number(text: str) -> float | str:
    """The number a text says, or the text, which a Precision then refuses."""
    try:
        return float(text)
    except ValueError:
        return text


FORMATS = tuple(f.name for f in fields(Precision) if f.type in (FloatFormat, "FloatFormat"))
"""The fields that an override may name."""

SHORT: Mapping[str, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Formats by the names that begin those of precisions."""

LARGEST_SCALE = 2**60  # its square is a float32
STREAMING: Mapping[str, bool] = {"streamed": True, "unstreamed": False}
"""What a name says of where the moments live."""

OVERRIDES = "(each may be followed by /nearest or /stochastic, /streamed, and by overrides such as /weights=float16)"

_HALF = Precision("", *(FLOAT16,) * 5, gradient_sum=FLOAT32)
_MLPERF = replace(_HALF, rounding=ROUNDINGS["stochastic"], streamed=True, first_moment=FLOAT16)

PRESETS: Mapping[str, Precision] = {
    "fp32.32": Precision("fp32.32"),
    "fp16.32": replace(_HALF, partials=FLOAT32, weights=FLOAT32),
    "fp16.16": replace(_HALF, gradient_sum=FLOAT16),
    "bf16.32": Precision("", BFLOAT16, BFLOAT16, output=BFLOAT16),
    "mlperf-bert": replace(_MLPERF, second_moment=FLOAT16, scaled_state=1024.0),
    "mlperf-bert-pod16": replace(_MLPERF, gradient_sum=FLOAT16, running_mean=True),
}
"""The named precisions. "mlperf-bert" is the recipe as told in the talk, "-pod16" as in the published configuration.
"bf16.32" is bfloat16 as other machines train with it, for comparison on the direct engine: no tile multiplies it."""
