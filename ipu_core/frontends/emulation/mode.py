"""The dispatch mode: one operation of torch after another, with its role, rounded as a precision says."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.errors import NotCovered
from ipu_core.frontends.emulation.linear import PRODUCTS
from ipu_core.frontends.emulation.names import FAMILIES, HIDDEN, MOMENTS, MOVES, VIEW_NODES
from ipu_core.frontends.torch.operations.call import in_order
from ipu_core.ir.block import Array
from ipu_core.ir.own_rounding import OwnRounding
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.role_formats import PLAIN, Rule
from ipu_core.ir.precision.rules import ROUNDINGS
from ipu_core.ir.run.rounded import round_once
from ipu_core.placement.cuts import usual_group
from lowprec import FloatFormat, Key, Rounding, as_key
from lowprec import float32 as FLOAT32
from lowprec.extras import optional

UNKNOWN = """not known here, but to from_torch: layers, cycles, memory, and the order of sums that a planner chooses
(products are added up in order, 16 at a time, of 8 bits 32); which sums and elementwise results belong to a norm or
loss, where torch has no operation of its own for it; sums, norms, softmax and losses are torch's own in float32;
gradients that are differentiated again count as forward"""

ENGINE = "_engine_run_backward"
"""What torch.autograd runs every backward pass by."""


def emulate(precision: Precision | str, *, key: Key | int = 0) -> Emulation:
    """A context in which PyTorch computes as a precision says, on the CPU; float32 tensors hold the rounded values.

    Products, convolutions and their gradients are lowprec's, of operands and partial sums in the precision's formats.
    Other float32 results are torch's own, rounded once where the precision has them narrower. Roles follow from
    autograd: what a backward pass computes is a gradient. What an optimizer of `torch.optim` computes stays in float32;
    its parameters and moments are rounded at the end of its step. Other tensors than float32 are left as they are.
    Infinite values stay infinite, as masks have them, where a format has infinities. What this cannot know is said
    where the context is printed.

    Args:
        precision: a `Precision` or its name.
        key: of stochastic rounding; every operation draws with a number of its own, in the order in which they run.

    Raises:
        ImportError: torch is not installed.
        ValueError: an unknown precision, or one that keeps moments scaled or as roots, or gradients as a running mean,
            has rules by name, casts and scales the operands of products, promotes sums, says the order of products or
            is under unit scaling.
        NotCovered: (within) products that an operation of torch hides, tensors elsewhere than on the CPU.
    """
    return Emulation(Precision.parse(precision), as_key(key))


class Emulation(contextlib.AbstractContextManager["Emulation"]):
    """See `emulate`. It may be entered again when it was left; its random bits then go on.

    Attributes:
        precision: the precision.
        products: how many were made, by role: forward, grad_input (of an activation), grad_weight (of a parameter).
        rounded: how many other results were rounded, by role; "update" counts parameters and moments.
    """

    def __init__(self, precision: Precision, key: Key) -> None:
        if precision.scaled_state != 1:
            raise ValueError(f"{precision.name} keeps moments scaled, which the optimizers of torch do not")
        if precision.rules:
            raise ValueError(f"{precision.name} has rules by name, and here no layers are known: see from_torch")
        if lost := [words for words, there in _not_here(precision).items() if there]:
            raise ValueError(f"{precision.name} has {', '.join(lost)}, which is not done here: see from_torch")
        self.precision, self._key = precision, key
        self.products: Counter[str] = Counter()
        self.rounded: Counter[str] = Counter()
        self._number, self._updating = 0, False
        self._gradients: set[int] = set()
        self._stack = contextlib.ExitStack()
        self._torch = optional("torch", extra="torch")

    def __enter__(self) -> Emulation:
        """Ways of torch that hide products in one operation are switched off meanwhile."""
        torch, layers = self._torch, self._torch.backends.mha
        hooks, attention = (optional(f"torch.{name}", extra="torch") for name in ("optim.optimizer", "nn.attention"))
        with contextlib.ExitStack() as stack:
            # attention as products and a softmax: within the fused kernels nothing can be rounded
            stack.enter_context(attention.sdpa_kernel(attention.SDPBackend.MATH))
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            # oneDNN's linear layers and convolutions are operations of their own below autograd
            torch._C._set_mkldnn_enabled(False)
            stack.callback(layers.set_fastpath_enabled, layers.get_fastpath_enabled())
            layers.set_fastpath_enabled(False)
            stack.callback(hooks.register_optimizer_step_pre_hook(self._before_update).remove)
            stack.callback(hooks.register_optimizer_step_post_hook(self._after_update).remove)
            stack.callback(setattr, torch.autograd, ENGINE, getattr(torch.autograd, ENGINE))
            # the one place where all backward passes begin: tensors do not say that they are gradients
            setattr(torch.autograd, ENGINE, self._noting_seeds(getattr(torch.autograd, ENGINE)))
            stack.enter_context(_mode(torch, self._call))
            # kept only when all is switched: a failure half way leaves torch as it was
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._updating = False
        self._stack.close()

    def __str__(self) -> str:
        made, others = (
            ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "none"
            for counts in (self.products, self.rounded)
        )
        return f"{self.precision.words()}\nproducts: {made}\nother results rounded: {others}\n{UNKNOWN}"

    def _call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation of torch."""
        schema, name = function._schema, function._schema.name.rpartition("::")[2]
        # optimizers compute in float32; their results are rounded at the end of the step
        if self._updating or not schema.name.startswith("aten::"):
            return function(*args, **kwargs)
        tensors = self._tensors((args, kwargs))
        if name in HIDDEN:
            raise NotCovered(f"aten.{name} holds products that cannot be rounded one by one: emulate has none for it")
        if any(tensor.device.type not in ("cpu", "meta") for tensor in tensors):
            raise NotCovered(f"aten.{name} is asked for on another device than the CPU")
        backward = self._in_backward()
        if name in PRODUCTS and tensors and all(tensor.dtype == self._torch.float32 for tensor in tensors):
            how = _Product(self, backward, tensors)
            try:
                result = PRODUCTS[name](how, *in_order(schema, args, kwargs))
            except NotImplementedError as error:
                raise NotCovered(f"aten.{name}: {error} have no counterpart") from None
        else:
            result = function(*args, **kwargs)
            # what moves numbers makes none, and a view shares memory that was rounded already
            if not (name in MOVES or name.endswith("_like") or _is_view(schema)):
                self._round_all(result, name, backward)
        if self._gradients:
            self._note(tensors, result)
        return result

    def _noting_seeds(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What runs a backward pass, with the gradients that it begins with noted as such."""

        def noting(outputs: Any, seeds: Any, *args: Any, **kwargs: Any) -> Any:
            outer = set(self._gradients)  # of a backward pass within which this one is
            self._gradients |= {_storage(seed) for seed in self._tensors(seeds)}
            try:
                return run(outputs, seeds, *args, **kwargs)
            finally:
                self._gradients = outer | self._gradients if outer else set()

        return noting

    def _in_backward(self) -> bool:
        """Whether a backward pass is computing, not a forward pass that it does again."""
        # checkpoints run the forward pass again within the backward pass, with gradients enabled
        return self._torch._C._current_graph_task_id() >= 0 and not self._torch.is_grad_enabled()

    def _note(self, tensors: Sequence[Any], result: Any) -> None:
        """What comes of a gradient is one; views of it share its storage."""
        storages = {_storage(tensor) for tensor in tensors}
        made = {_storage(tensor) for tensor in self._tensors(result)}
        if storages & self._gradients:
            self._gradients |= made
        else:
            self._gradients -= made - storages  # where a gradient's memory is used again

    def _round_all(self, result: Any, name: str, backward: bool) -> None:
        """The float32 tensors of a result, rounded once."""
        for tensor in self._tensors(result):
            if tensor.dtype == self._torch.float32 and tensor.device.type == "cpu":
                self.round(tensor, FAMILIES.get(name, "elementwise"), backward, name.rstrip("_"))

    def round(self, tensor: Any, family: str, backward: bool, name: str) -> None:
        """A float32 tensor rounded in place to what the precision says of its family."""
        role = "grad_input" if backward else "forward"
        # autograd's last node of a parameter: what it adds up is the gradient sum
        if backward and self._node().endswith("AccumulateGrad"):
            role, family = "grad_weight", "gradient_sum"
        rule = self.precision.rule(role, family)
        fmt = rule.output
        own = self.precision.gradients if backward else self.precision.operands
        word = {"sub": "subtract", "mul": "multiply"}.get(name, name)
        plain = word in PLAIN and family == "elementwise"
        rounding = rule.rounding or _finite(self.precision.rounding_of(word if plain else name, [own], fmt), fmt)
        if self._round(tensor, fmt, rounding):
            self.rounded[role] += 1

    def _round(self, tensor: Any, fmt: FloatFormat, rounding: Rounding) -> bool:
        if fmt.contains(FLOAT32) and not isinstance(rounding, OwnRounding):
            return False
        array = tensor.detach().numpy()
        # in place: autograd may have saved the tensor already, and must see the rounded values
        array[...] = round_once(array, fmt, rounding, self.next_key())
        return True

    def next_key(self) -> Key:
        """The key of the next operation."""
        # counted over all operations: a script has no steps that could be told from outside
        self._number += 1
        return self._key.fold_in(self._number)

    def _tensors(self, value: Any) -> list[Any]:
        leaves = self._torch.utils._pytree.tree_leaves(value)
        return [leaf for leaf in leaves if isinstance(leaf, self._torch.Tensor)]

    def _node(self) -> str:
        node = self._torch._C._current_autograd_node()
        return "" if node is None else str(node.name())

    def is_gradient(self, tensor: Any) -> bool:
        """Whether a tensor of a backward pass comes of the loss's gradient."""
        return _storage(tensor) in self._gradients

    def role(self, tensors: Sequence[Any]) -> str:
        """Of a product in a backward pass: it is of a parameter where one was an operand and is none here."""
        node = self._torch._C._current_autograd_node()
        leaves = [] if node is None else _leaves(node)
        parameters = [leaf for leaf in leaves if isinstance(leaf, self._torch.nn.Parameter)] or leaves
        others = {_storage(tensor) for tensor in tensors if not self.is_gradient(tensor)}
        return "grad_weight" if any(_storage(x) not in others for x in parameters) else "grad_input"

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updating = True

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Rounds parameters and moments to the formats in which they are kept."""
        self._updating = False
        kept: list[tuple[Any, str]] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # the step left it as it was
                if parameter.grad is None:
                    continue
                kept.append((parameter, "weights"))
                state = optimizer.state.get(parameter, {})
                kept += [(state[name], field) for name, field in MOMENTS.items() if state.get(name) is not None]
        for tensor, field in kept:
            if tensor.dtype == self._torch.float32:
                fmt = getattr(self.precision, field)
                how = self.precision.rounding_said(field) or _finite(self.precision.rounding, fmt)
                done = self._round(tensor, fmt, how)
                self.rounded["update"] += done


class _Product:
    """How one product, or one convolution with its gradients, is made (`products.How`)."""

    def __init__(self, emulation: Emulation, backward: bool, tensors: Sequence[Any]) -> None:
        self._emulation, self._backward, self._tensors = emulation, backward, tensors
        self._precision = emulation.precision

    def operand(self, tensor: Any) -> Array:
        """In the format of gradients or of other operands."""
        gradient = self._backward and self._emulation.is_gradient(tensor)
        field = "gradients" if gradient else "operands"
        fmt, said = getattr(self._precision, field), self._precision.rounding_said(field)
        array = np.asarray(tensor.detach().numpy())
        if fmt.contains(FLOAT32) and said is None:
            return array
        rounding = said or _finite(self._precision.rounding_of("convert", [FLOAT32], fmt), fmt)
        return round_once(array, fmt, rounding, self._emulation.next_key())

    def sums(self, role: str | None = None) -> dict[str, Any]:
        """The precision's partial sums and results."""
        role = role or (self._emulation.role(self._tensors) if self._backward else "forward")
        self._emulation.products[role] += 1
        rule = self._precision.rule(role, "matmul")
        formats = {self._precision.operands, self._precision.gradients if self._backward else self._precision.operands}
        # products of 8 bits are added 32 at a time only if both operands have them
        group = min(usual_group(fmt) for fmt in formats)
        out = FLOAT32 if self._is_apart(rule) else rule.output
        narrow = not (out.contains(FLOAT32) and rule.accumulate.contains(FLOAT32))
        own = rule.partials or self._precision.rounding
        ours = rule.accumulate.dtype is not None and own.overflow is None
        rounding = (replace(own, overflow="ipu") if ours else own) if narrow else "nearest_even"
        return {"accumulate": rule.accumulate, "out_format": out, "rounding": rounding,
                "group": group, "key": self._emulation.next_key()}  # fmt: skip

    def _is_apart(self, rule: Rule) -> bool:
        """Whether a result is rounded once, from float32, as no tile does it."""
        own = rule.rounding is not None or rule.partials is not None or rule.output.dtype is None
        return own or self._precision.rounding not in ROUNDINGS.values()

    def tensor(self, array: Array) -> Any:
        """In float32."""
        rule, made = self._precision.rule("forward", "matmul"), np.array(array, np.float32)
        if self._is_apart(rule):
            made = round_once(made, rule.output, rule.rounding or self._precision.rounding, self._emulation.next_key())
        return self._emulation._torch.from_numpy(np.asarray(made, np.float32))

    def rounded(self, tensor: Any, family: str = "elementwise") -> Any:
        """In place."""
        self._emulation.round(tensor, family, self._backward, "add")
        return tensor


def _not_here(precision: Precision) -> dict[str, bool]:
    """What a precision may say that decides bits and is not done here, in words, and whether this one says it."""
    return {
        "operands of products that are cast and scaled": precision.scaling is not None,
        "sums that are promoted": precision.promote is not None,
        "an order of products": precision.order is not None,
        "second moments kept as roots": precision.store_root,
        "gradients kept as a running mean": precision.running_mean,
        "a model under unit scaling": precision.unit_scaled,
        "rounding of all of the optimizer's arithmetic": precision.everywhere,
        "norms of narrow numbers": precision.norms != "float32",
    }


def _finite(rounding: Rounding, fmt: FloatFormat) -> Rounding:
    """A rounding on the machine, of a value that may be infinite as masks are, where the format has infinities."""
    if fmt.dtype is None:
        return rounding
    if not fmt.infinities:
        return replace(rounding, overflow="ipu")
    return replace(rounding, overflow="saturate", infinite_input="keep")


def _mode(torch: Any, call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]) -> Any:
    """A dispatch mode of torch that gives every operation to a function."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch may not be there
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.is_inference_mode_enabled():  # there operations come whole
                with self:
                    parts = function.decompose(*args, **(kwargs or {}))
                if parts is not NotImplemented:
                    return parts
            return call(function, args, kwargs or {})

    return Mode()


def _is_view(schema: Any) -> bool:
    """Whether an operation gives another view of an operand."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)


def _storage(tensor: Any) -> int:
    """What tells memory apart that tensors share."""
    return int(tensor.untyped_storage()._cdata)


def _leaves(node: Any) -> list[Any]:
    """The leaves of autograd among the factors of the product that a node is the gradient of."""
    found, added = [], node.name().startswith(("Addmm", "Baddbmm", "Addmv"))  # of which the first operand is no factor
    for following, _ in node.next_functions[added:]:
        while following is not None and following.name().startswith(VIEW_NODES):
            following = following.next_functions[0][0]
        if following is not None and following.name().endswith("AccumulateGrad"):
            found.append(following.variable)
    return found
