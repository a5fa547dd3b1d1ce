"""Rules of a precision for parts of a model: "layers.0.*:weights=float32", "*.qkv.*:grad_weight.partials=float32".

A rule is PATTERN:FIELD=VALUE or PATTERN:PRODUCT.FIELD=VALUE. The pattern is a dotted name in which * stands for
anything; "layers.0" means everything in it too, and an empty one everything. Equations are called by the path of the
parameter they concern ("layers.0.attention.qkv.weight", also of its update and its moments) and by their layer (see
`nn.name_scope`; torch's own names for a module of torch) with their operation ("layers.0.attention.dot"). The product
says that only the forward equations are meant (forward), those of gradients of activations (grad_input) or of weights
(grad_weight). Instead of "rounding=nearest" a rule may say "nearest". Of several rules for one equation the last that
sets a field counts. A rule that sets nothing, for its pattern is no part's or no part of that name has the field, is
refused; so is one whose pattern holds a "=".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.operand_scaling import SCALINGS, OperandScaling, read
from ipu_core.ir.precision.said_rounding import RoundedFormat, read_format, read_rounding, written
from lowprec import BlockFormat, FloatFormat, Rounding
from lowprec.checks import expect
from lowprec.values.rounding import NEAREST_EVEN, STOCHASTIC

PASSES = ("forward", "grad_input", "grad_weight")
"""The three products of a layer, and what belongs to each; roles of equations."""
MOMENTS = ("first_moment", "second_moment")
STATE = ("weights", "gradient_sum", *MOMENTS)
"""Fields of what is kept, of which each parameter has one, whatever the product."""
SCALING = (
    "scaling", "forward", "backward", "forward_rounding", "backward_rounding", "scale_rule", "rotation",
    "rotation_block",
)  # fmt: skip
"""Fields of how operands of products are cast: all of them at once, "scaling", or one of an `OperandScaling`."""
OF_COTANGENTS = ("gradients", "backward", "backward_rounding")
"""Fields of what no forward equation reads."""
Value = FloatFormat | RoundedFormat | BlockFormat | Rounding | OperandScaling | str | int | None
ROUNDINGS: Mapping[str, Rounding] = {"nearest": NEAREST_EVEN, "stochastic": STOCHASTIC}
"""What the machine has, by the names of precisions."""
NEAR = 5  # names that a refusal offers


@dataclass(frozen=True)
class PrecisionRule:
    """One field of a `Precision`, for the equations of some names; where several fit, the last counts.

    Attributes:
        pattern: of names, with * for anything.
        field: a field of `Precision` that is a format, "rounding" or "scaling", or one of `SCALING`.
        value: what it is there. "scaling" is an `OperandScaling` that is not delayed, or None: operands are not cast.
        product: "forward", "grad_input" or "grad_weight"; None: all of them.

    Raises:
        TypeError: a pattern or field that is no text, a value of another kind.
        ValueError: an unknown product, one for what is kept between steps, or that reads no such field; a pattern that
            holds a "=".
    """

    pattern: str
    field: str
    value: Value
    product: str | None = None

    def __post_init__(self) -> None:
        expect(str, pattern=self.pattern, field=self.field)
        if self.product is not None:
            expect(str, product=self.product)
        if "=" in self.pattern:
            raise ValueError(
                f"{self.pattern!r} in the rule {str(self)!r} is no name of a part; settings are joined by '/', and "
                "a rule for the parts of a name is NAME:weights=float32"
            )
        if self.field == "scaling" and not (self.value is None or isinstance(self.value, OperandScaling)):
            raise TypeError(f"scaling in a rule is an OperandScaling or None, not {self.value!r}")
        if isinstance(self.value, OperandScaling) and self.value.how == "delayed":
            raise ValueError("delayed scales of all products have one history: a rule's scaling cannot be delayed")
        if self.product is None:
            return
        if self.product not in PASSES:
            raise ValueError(f"unknown product {self.product!r} in a rule; there are {', '.join(PASSES)}")
        if self.field in STATE:
            raise ValueError(f"{self.field} are kept from step to step, {self.product} does not apply to them")
        if self.product == "forward" and self.field in OF_COTANGENTS:
            raise ValueError(
                f"nothing forward reads {self.field}, which {str(self)!r} sets: grad_input and grad_weight do"
            )

    def matches(self, equation: Equation) -> bool:
        """Whether it is for this equation."""
        expect(Equation, equation=equation)
        return self.product in (None, equation.role) and any(map(self.names, names_of(equation)))

    def names(self, name: str) -> bool:
        """Whether its pattern is for a name."""
        expect(str, name=name)
        return named(self.pattern, name)

    def __str__(self) -> str:
        product = f"{self.product}." if self.product else ""
        if isinstance(self.value, Rounding):
            return f"{self.pattern}:{product}rounding={written(self.value)}"
        return f"{self.pattern}:{product}{self.field}={_text(self.value)}"


def _text(value: Value) -> str:
    """A value as it is written, or a scaling without a name in words."""
    if isinstance(value, OperandScaling):
        return next((name for name, one in SCALINGS.items() if one == value), value.words())
    return value.name if isinstance(value, FloatFormat | BlockFormat) else "none" if value is None else str(value)


def named(pattern: str, name: str) -> bool:
    """Whether a pattern is for a name: it fits it, or something that it is in."""
    return not pattern or fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def names_of(equation: Equation) -> Iterator[str]:
    """What an equation is called in rules: by its parameter and by its layer, or by its operation alone."""
    if equation.parameter:
        yield equation.parameter
    if equation.layer or not equation.parameter:
        yield ".".join(filter(None, (equation.layer, equation.op)))


LAYERS = "layers"
"""The word for every layer, where names of parts are asked for."""

Reads = Callable[[int, str, Equation], bool]
"""Whether an equation has a field as far as the rules before that of a number leave it one."""


def check_matches(rules: Sequence[PrecisionRule], block: Block, fields: Sequence[str], reads: Reads) -> None:
    """Refuses rules that set nothing in a training step, which `fields` are read of.

    Raises:
        ValueError: with names that are near to what was meant, or what the parts of that name have.
    """
    equations = [equation for equation in equations_of(block) if equation.op not in STRUCTURE]
    for number, rule in enumerate(rules):
        fitting = [equation for equation in equations if rule.matches(equation)]
        if not fitting:
            raise ValueError(f"the rule {str(rule)!r} is for nothing in this model; {_near(rule, equations)}")
        # "moments" became two rules, of which an optimizer with one moment reads one: that is enough for both.
        both = MOMENTS if any(_are_moments(rule, other) for other in rules) else (rule.field,)
        if not any(reads(number, field, equation) for field in both for equation in fitting):
            there = [field for field in fields if any(reads(number, field, equation) for equation in fitting)]
            raise ValueError(
                f"the rule {str(rule)!r} is for nothing in this model: what has such a name has no {rule.field} to "
                f"set, but {', '.join(there)}"
            )


def check_names(rules: Sequence[PrecisionRule], block: Block, parameters: Iterable[str]) -> None:
    """Refuses rules whose pattern is for nothing in a model that is not trained.

    Raises:
        ValueError: with names that are near to what was meant.
    """
    equations = [equation for equation in equations_of(block) if equation.op not in STRUCTURE]
    names = [*parameters, *(name for equation in equations for name in names_of(equation))]
    for rule in rules:
        if not any(map(rule.names, names)):
            raise ValueError(f"the rule {str(rule)!r} is for nothing in this model; {_near(rule, equations)}")


def _are_moments(one: PrecisionRule, other: PrecisionRule) -> bool:
    """Whether two rules are those of one that says "moments", of which some optimizers have one."""
    pair = {one.field, other.field} == set(MOMENTS)
    return pair and (one.pattern, one.value) == (other.pattern, other.value)


def _near(rule: PrecisionRule, equations: Sequence[Equation]) -> str:
    """Names like a rule's, in words."""
    meant = rule.pattern.replace("*", "").strip(". ")
    names = dict.fromkeys(name for equation in equations for name in names_of(equation))
    if any(map(rule.names, names)):
        return f"what has such a name has no part in {rule.product}"
    parts = dict.fromkeys(part for name in names for part in _beginnings(name))
    # The beginnings of names too: what is meant is often a part.
    near = get_close_matches(meant, list(parts), NEAR, 0.5) or list(names)[:NEAR]
    return f"names are {', '.join(near)}{' ...' if len(names) > NEAR else ''}"


def _beginnings(name: str) -> Iterator[str]:
    """The names of the parts that something is in, and its own."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def ruled(formats: Sequence[str]) -> str:
    """The fields that a rule may name, in words, `formats` among them."""
    return ", ".join((*formats, "moments", "rounding", *SCALING))


def rules_of(text: str | PrecisionRule, formats: Sequence[str]) -> list[PrecisionRule]:
    """The rules that a text says: PATTERN:FIELD=VALUE, PATTERN:PRODUCT.FIELD=VALUE, PATTERN:nearest.

    Args:
        text: of a rule, or one.
        formats: the fields of a precision that are formats.

    Raises:
        TypeError, ValueError: it is none, and why.
    """
    if isinstance(text, PrecisionRule):
        return [text]
    if not isinstance(text, str):
        raise TypeError(f"a rule is a PrecisionRule or a text such as 'layers.0.*:weights=float32', not {text!r}")
    # The last colon: names of parts may have some.
    pattern, colon, word = text.rpartition(":")
    if not colon:
        meant = ":".join(text.rsplit("/", 1)) if "/" in text else "layers.0.*:weights=float32"
        raise ValueError(f"a rule is a pattern, a colon and a setting, such as {meant!r}, not {text!r}")
    said, _, value = word.partition("=") if "=" in word.partition("(")[0] else ("rounding", "", word)
    *product, field = said.split(".", 1)
    if field not in (*formats, "moments", "rounding", *SCALING):
        raise ValueError(f"unknown field {field!r} in the rule {text!r}; there are {ruled(formats)}")
    if field in SCALING:
        return [PrecisionRule(pattern, field, _of_scaling(field, value, text), *product)]
    fields = MOMENTS if field == "moments" else (field,)
    try:
        known: Value = read_rounding(value) if field == "rounding" else _plain(read_format(value))
    except ValueError as error:
        raise ValueError(f"the rule {text!r}: {error}") from None
    return [PrecisionRule(pattern, one, known, *product) for one in fields]


def _plain(said: RoundedFormat) -> FloatFormat | RoundedFormat:
    """A format alone where nothing is said of its rounding."""
    return said.format if said.rounding is None else said


def _of_scaling(field: str, value: str, text: str) -> Any:
    """What a rule says of how operands are cast: "scaling" is none or one by name."""
    if field == "scaling":
        if value != "none" and value not in SCALINGS:
            raise ValueError(f"scaling in the rule {text!r} is none or that of {', '.join(SCALINGS)}, not {value!r}")
        return SCALINGS.get(value)
    return read(field, value, text)
