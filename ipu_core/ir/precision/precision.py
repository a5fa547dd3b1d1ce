"""Precision: a table from (role, family) to formats, partials and rounding under its names, and applied to a step.

Preset names are operands.partials, as in FLOP/s figures: "fp16.32" multiplies float16 operands into float32 partials.
It keeps the weights in float32, "fp16.16" in float16: "fp16.16/nearest/weights=float32" varies the partials alone. (The
published performance tables of the machine mean compute type . master-weight type by the same shape of name.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of, mapped
from ipu_core.ir.ops import PRODUCTS
from ipu_core.ir.parameters import name_parameters
from ipu_core.ir.passes.schedule import as_it_runs
from ipu_core.ir.passes.streaming import moments
from ipu_core.ir.precision.amax_scales import with_scales
from ipu_core.ir.precision.identified import fields_of
from ipu_core.ir.precision.misspelt import meant, with_commas
from ipu_core.ir.precision.operand_scaling import SCALINGS, OperandScaling, difference
from ipu_core.ir.precision.overrides import STREAMING, SUMS, SWITCHES, overrides
from ipu_core.ir.precision.retype import Retype, cast, input_formats
from ipu_core.ir.precision.role_formats import FIELDS, FORMATS, RoleFormats
from ipu_core.ir.precision.rules import ROUNDINGS, PrecisionRule, check_matches, check_names
from ipu_core.ir.precision.said_rounding import RoundedFormat, split_words
from ipu_core.ir.precision.scaled_products import scale_products
from ipu_core.ir.precision.whitening import NORMS
from ipu_core.ir.pytree import LEAF, flatten, paths, unflatten
from lowprec import FloatFormat, Identified, Rounding, aliases, formats
from lowprec import bfloat16 as BFLOAT16
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64
from lowprec import tfloat32 as TFLOAT32
from lowprec.checks import expect, listed


@dataclass(frozen=True)
class Precision(RoleFormats):
    """The formats of a training step.

    Attributes:
        name: what to call it in tables, any text but one that says another precision; `parse` makes one of a name, and
            `changed` one that has other fields and is called so.
        operands: activations, and everything that goes into a forward product.
        gradients: cotangents of activations and weights.
        partials: partial sums of products and reductions. One that float32 lacks values of, such as float64,
            as operands and gradients of such formats need: then sums are made in float64 (see `ir.run.wide`).
        output: results of products.
        weights: the weights that are kept (master weights) and updated.
        gradient_sum: the sum of gradients over micro-batches.
        first_moment, second_moment: the optimizer's stored moments.
        rounding: stochastic where the machine has it (see `PLAIN` in `ir.precision.role_formats`), to nearest even
            elsewhere; or that everywhere. Any other `lowprec.Rounding` is of every result, rounded once.
        running_mean: micro-batch gradients are kept as a running mean, not as a sum.
        streamed: the moments live in streaming memory, those of one element excepted.
        scaling: how the operands of products are cast and scaled, just before each; None: they are what `operands` and
            `gradients` say, as everything else is.
        promote: partial sums of products are added to float32 ones after at most so many products, which begin anew;
            None: as the order of each sum says.
        group, splits, adder: the order of products, of which one that is given gives all: the products of a group
            (16), the parts of a sum (1), and how a group is added: "sequential", "dot4", "pairwise", or "aligned13" for
            an aligned adder that keeps 13 bits, which no tile has (see `lowprec.Accumulation`). None of them: as it is
            planned for the machine.
        scaled_state: what Adam's and LAMB's moments are kept times, and the second times its square: a power of two
            that moves them into a half's range. Optimizers with a `scaled_state` of their own keep theirs.
        store_root: Adam's and LAMB's second moment is kept as its square root, which spans half as many powers of two.
        unit_scaled: the model is under unit scaling (see `unit_scale`): `TrainLoop`, `Predictor` and `compare` give its
            loss and scores the factors, unless they have them. `compare` begins weights with deviation 1, as
            `nn.unit_parameters` does; a `TrainLoop` refuses others.
        everywhere: losses, norms, softmax and the optimizer's arithmetic are not float32 but have the formats of all
            else: activations' and gradients', the optimizer's that of weights.
        norms: "float32", or "operands": only the statistics of norms (sums, squares and what is made of them) are
            float32; what has an element for each of the input is in the operands' format, in the backward pass in the
            gradients', as PopNN computes norms of halves. Norms of a captured JAX function are not known as such.
        roundings: how the values of single fields are rounded, by field: {"weights": Rounding("stochastic",
            random_bits=5)}. They are rounded once, from float32, by its own policies.
        rules: what is otherwise in parts of the model: `PrecisionRule`s, or texts such as "layers.0.*:weights=float32"
            or "*.attention.*:grad_weight.partials=float32" (see `ipu_core.ir.precision.rules`); later ones win.

    Raises:
        TypeError: a format that is no FloatFormat, a rule that is none.
        ValueError: partials that hold no sums; a rounding it does not have; a rule for a field that there is not; a
            name that says something else than the fields.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_name()

    def _check_name(self) -> None:
        """Refuses a name that says another precision, or another format of operands."""
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a text, not {self.name!r}")
        if self.name and _is_known(self.name) and (changed := _difference(_meant(self.name), self)):
            raise ValueError(
                f"the name {self.name!r} says another {', '.join(changed)} than the fields do: "
                f"Precision.parse({self.name!r}) makes what it says, its .changed({changed[0]}=...) what differs from "
                "it; what has these fields has a name of its own, or none (name='')"
            )
        fmt = formats.get(self.name) or aliases.get(self.name)
        if fmt is not None and fmt != self.operands:
            raise ValueError(f"the name {self.name!r} is that of a format, but operands are {self.operands.name}")

    @staticmethod
    def parse(spec: str | Precision | Identified) -> Precision:
        """A preset by name, with overrides and rules: "fp32.32", "fp16.16/stochastic", "fp16.32/weights=float16",
        "fp16.16/stochastic/layers.0.*:weights=float32/:grad_weight.partials=float32".

        They are taken in order: of two words that set one field, and of two rules for one equation, the later counts;
        rules win over words. What `lowprec.identify` found gives "fp32.32" with its products.

        Raises:
            TypeError: neither a name nor a Precision.
            ValueError: an unknown preset, rounding, field or format; the message lists the valid ones.
        """
        if isinstance(spec, Precision):
            return spec
        if isinstance(spec, Identified):
            found = replace(PRESETS["fp32.32"], **fields_of(spec))
            # Not as a variant of a chip's preset, which it may be near by chance.
            name = found._beside("fp32.32")
            return replace(found, name=name if _says(name, found) else str(found))
        if not isinstance(spec, str):
            raise TypeError(f"a precision is a name such as 'fp16.16/stochastic', or a Precision, not {spec!r}")
        return replace(_meant(spec), name=spec)

    def changed(self, **changes: Any) -> Precision:
        """The same with other fields, under the name that says so, such as "fp16.16/nearest/weights=float32".

        Raises:
            TypeError: no such field, or one's value is of another kind; the name follows from the fields.
        """
        names = [f.name for f in fields(self)[1:]]
        if unknown := changes.keys() - set(names):
            raise TypeError(f"a precision has no field {min(unknown)!r} to change; there are {', '.join(names)}")
        # A format that is changed alone is rounded as all is, as in a text.
        kept = {field: how for field, how in self.roundings if field not in changes}
        new = replace(self, name="", **{"roundings": kept, **changes})
        return replace(new, name=text if _says(text := str(new), new) else f"changed {self.name}")

    def with_rules(self, rules: str | PrecisionRule | Sequence[str | PrecisionRule]) -> Precision:
        """The same with more rules, which win over those that it has, under its name and theirs."""
        rules = [rules] if isinstance(rules, str | PrecisionRule) else listed("rules", rules)
        new, name = replace(self, name="", rules=(*self.rules, *rules)), "/".join([self.name, *map(str, rules)])
        return replace(new, name=name if _says(name, new) or not _is_known(name) else f"changed {self.name}")

    def apply(self, block: Block, *, whole: bool = True, inputs: Sequence[Any] | None = None) -> Block:
        """The Block with every equation typed by the table, and conversions where operands need them.

        Numbers of equations stay; conversions get fresh ones. The types of a carried state follow its new value.

        Args:
            block: an ideal step, or a model that is evaluated.
            whole: whether it is all of the model, so that rules for nothing in it are refused; False: a part of what
                was trained.
            inputs: formats that inputs come in, one for each; None: as traced. What `nn` widens to float32 is converted
                once it is there, so trace with float32 for every float. A carried state has that of its new value.

        Raises:
            TypeError: no Block.
            ValueError: a rule that sets nothing in the Block; the message has what there is. Formats that do not fit.
        """
        expect(Block, block=block)
        block = as_it_runs(block)
        given = None if inputs is None else input_formats(block, inputs)
        # In a training step equations know their parameter. In a model that is evaluated nobody has told them yet.
        if self.rules and all(equation.role == "forward" for equation in equations_of(block)):
            parameters = paths(block.arguments[0] if block.arguments else LEAF)
            block = name_parameters(block, dict(zip(block.inputs, parameters, strict=False)))
            if whole:
                check_names(self.rules, block, parameters)
        elif whole:
            trained = any(equation.role == "update" for equation in equations_of(block))
            check_matches(self.rules, block, FIELDS, functools.partial(self._reads, trained))
        typed = Retype(self, block, given).run()
        if self.scaling is not None or any(rule.field == "scaling" for rule in self.rules):
            typed = scale_products(typed, self)
        # Behind the scaling, whose products are promoted too.
        if self.promote is not None or self.order is not None:
            typed = mapped(typed, self._summed)
        return replace(typed, streamed=typed.streamed | moments(typed)) if self.streamed else typed

    def _summed(self, equation: Equation) -> Equation:
        if equation.op not in PRODUCTS:
            return equation
        return replace(equation, arithmetic=replace(equation.arithmetic, promote=self.promote, order=self.order))

    def cast_state(self, block: Block, state: Any) -> Any:
        """The initial state in the formats that a Block of this precision carries, rounded to nearest even.

        Args:
            block: what `apply` gave.
            state: nested as the Block's first argument; scales may be missing, which begin as 1.
        """
        leaves, tree = flatten(with_scales(block, state))
        if len(leaves) != block.carried:
            raise ValueError(f"the step carries {block.carried} arrays, the state has {len(leaves)}")
        return unflatten(tree, [cast(x, var.type.format) for x, var in zip(leaves, block.inputs, strict=False)])

    def __str__(self) -> str:
        """A name from which `parse` makes this precision: its own, or one that says all that it is.

        One that no name says, with a format that has none or scales of its own in a rule, gives its `words`.
        """
        own = [self.name, *sorted((name for base in PRESETS if (name := self._beside(base))), key=len)]
        return next((name for name in own if _says(name, self)), self.words())

    def __repr__(self) -> str:
        """What makes it again, where a name says it."""
        text = str(self)
        if not _says(text, self):
            return f"<Precision {text}>"
        made = f"Precision.parse({text!r})"
        return made if text == self.name else f"replace({made}, name={self.name!r})"

    def _beside(self, preset: str) -> str:
        """A name that begins with a preset's; "" where what is cast differs, of which only a part can be said."""
        base = PRESETS[preset]
        if (self.scaling is None) != (base.scaling is None):
            return ""
        words = [self.rounding_name] if self.rounding != base.rounding or preset == "fp16.16" else []
        words += ["streamed" if self.streamed else "unstreamed"] if self.streamed != base.streamed else []
        changed = [name for name in FORMATS if self._kept_as(name) != base._kept_as(name)]
        words += [f"{name}={self._kept_as(name)}" for name in changed]
        others = {name: getattr(self, name) for name in ("scaled_state", *SUMS, "norms", *SWITCHES)}
        words += [f"{name}={value}".lower() for name, value in others.items() if value != getattr(base, name)]
        if self.scaling is not None and base.scaling is not None:
            words += difference(self.scaling, base.scaling)
        return "/".join([preset, *words, *map(str, self.rules)])

    def _kept_as(self, field: str) -> RoundedFormat:
        """The format of a field, and how it is rounded."""
        return RoundedFormat(getattr(self, field), self.rounding_said(field))

    def words(self) -> str:
        """The formats in one line."""
        formats = ", ".join(f"{name} {self._kept_as(name)}" for name in FORMATS)
        scaled = f", moments times {self.scaled_state:g}" if self.scaled_state != 1 else ""
        scaled += ", the second as its root" if self.store_root else ""
        products = f", {self.scaling.words()}" if self.scaling is not None else ""
        scaled += ", under unit scaling" if self.unit_scaled else ""
        scaled += ", losses, norms, softmax and the optimizer's arithmetic too" if self.everywhere else ""
        scaled += ", of norms only the statistics in float32" if self.norms != NORMS[0] else ""
        promoted = f", products summed in {self.order.order_words()}" if self.order is not None else ""
        promoted += f", promoted every {self.promote}" if self.promote is not None else ""
        ruled = "".join(f"; {rule}" for rule in self.rules)
        return f"{self.name}: {formats}, {self.rounding_name}{scaled}{products}{promoted}{ruled}"


def _says(name: str, precision: Precision) -> bool:
    """Whether a name is that of a precision, whatever it is called."""
    try:
        return not _difference(_meant(name), precision)
    except ValueError:
        return False


def _difference(one: Precision, other: Precision) -> list[str]:
    """The fields in which two precisions differ, but for their names."""
    return [f.name for f in fields(Precision)[1:] if getattr(one, f.name) != getattr(other, f.name)]


def _is_known(name: str) -> bool:
    """Whether a name begins as that of a precision here does, which then says what it is of."""
    return name.split("/")[0].strip().lower() in PRESETS


@functools.lru_cache(maxsize=1024)
def _meant(spec: str) -> Precision:
    """The precision of a name, without that.

    Raises:
        ValueError: as `Precision.parse`.
    """
    name, *rest = spec.split("/")
    if len(split_words(spec, ",")) > 1:
        raise ValueError(with_commas(spec, PRESETS))
    if name not in PRESETS:
        raise ValueError(
            f"unknown precision {spec!r}{meant(name, PRESETS)}; there are {', '.join(PRESETS)} {OVERRIDES}"
        )
    precision = PRESETS[name]
    modes = [word for word in rest if not {"=", ":"} & {*word.partition("(")[0]} and word not in STREAMING]
    if name == "fp16.16" and not modes:
        raise ValueError("'fp16.16' must say how it rounds: 'fp16.16/nearest' or 'fp16.16/stochastic'")
    for word in rest:
        said = precision.scaling, precision.rules, FORMATS, precision.roundings
        precision = replace(precision, **overrides(word, spec, *said))
    return precision


OVERRIDES = (
    "(each may be followed by /nearest or /stochastic, /streamed, by overrides such as /weights=float16, and by "
    "rules such as /layers.0.*:weights=float32)"
)

_HALF = Precision("", *(FLOAT16,) * 5, gradient_sum=FLOAT32)
_MIXED = replace(_HALF, partials=FLOAT32, weights=FLOAT32)
_BF16 = Precision("", BFLOAT16, BFLOAT16, output=BFLOAT16)
_FP22: dict[str, Any] = {
    "partials": FloatFormat("e8m13", 8, 13),
    "roundings": (("partials", Rounding("toward_zero")),),
}
_MLPERF = replace(_HALF, rounding=ROUNDINGS["stochastic"], streamed=True, first_moment=FLOAT16)

PRESETS: Mapping[str, Precision] = {
    "fp32.32": Precision(""),
    "fp16.32": _MIXED,
    "fp16.16": replace(_HALF, gradient_sum=FLOAT16),
    "bf16.32": _BF16,
    **{name: replace(_MIXED, scaling=SCALINGS[name]) for name in ("fp8", "mxfp8", "mxfp4", "nvfp4")},
    "h100-fp8": replace(
        _BF16, **_FP22, scaling=OperandScaling(cast_once=True), group=32, adder="aligned13", promote=128
    ),
    "h100-bf16": replace(_BF16, group=16, adder="aligned25"),
    "a100-tf32": replace(
        Precision(""), scaling=OperandScaling(TFLOAT32, TFLOAT32, "unscaled"), group=4, adder="aligned24"
    ),
    "fp8.16": replace(_HALF, weights=FLOAT32, scaling=SCALINGS["fp8.16"]),
    "unit-fp16": replace(_MIXED, unit_scaled=True),
    "unit-fp8": replace(_MIXED, scaling=replace(SCALINGS["fp8"], how="unscaled"), unit_scaled=True),
    "mlperf-bert": replace(_MLPERF, second_moment=FLOAT16, scaled_state=1024.0, store_root=True),
    "mlperf-bert-v2": replace(_MLPERF, streamed=False, second_moment=FLOAT16, scaled_state=10.0),
    "mlperf-bert-pod16": replace(_MLPERF, gradient_sum=FLOAT16, running_mean=True),
    "float64": Precision("", *(FLOAT64,) * 8, everywhere=True),
}
"""The named precisions. "mlperf-bert" is the recipe as told in the talk (its root and its factor of 1,024 are this
library's own: published nowhere), "-pod16" as in the published configuration of v1.1 on 16 chips, "-v2" as in those of
v2.0: both moments FP16 on the chip, times 10 and 100; how those added up gradients is not known, here in float32.
"float64" is a baseline, on the direct engine: every operation in float64, sums in a stated order. It is slow.
"bf16.32" is bfloat16 as other machines train with it, for comparison on the direct engine: no tile multiplies it.
"fp8", "mxfp8", "mxfp4" and "nvfp4" are "fp16.32" but for the operands of products (see `SCALINGS` in
`ir.precision.operand_scaling`), on that engine too.
"h100-fp8", "h100-bf16" and "a100-tf32" add up products as tensor cores were measured to (see `lowprec.matmul`, and the
how-to page on identifying arithmetic for what of them is guessed), on that engine too.
"unit-fp16" and "unit-fp8" are "fp16.32" and "fp8/unscaled" under unit scaling.
"fp8.16" is what a C600 has: its own formats, scales that are powers of two, FP16 partial sums of 32 products a time."""
