"""The read-only part of a training loop: steps done, parameters, losses of precision, orders of sums, costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipu_core.chip.target import Target
from ipu_core.diagnose.measure import UpdateCounter
from ipu_core.diagnose.precision_table import WIDTH, precision_table
from ipu_core.diagnose.watch import Record
from ipu_core.engine.profile import Profile
from ipu_core.engine.words import call_facts
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of, regions_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.regions import Loop
from ipu_core.system.account import SystemProfile
from ipu_core.system.words import copies
from ipu_core.train.execution import Execution
from ipu_core.train.loss_scale import Skipped
from ipu_core.train.options import foreign
from ipu_core.train.planned import read_random
from ipu_core.train.stepper import Stepper
from ipu_core.train.system_profile import system_profile
from ipu_core.train.table import Table
from ipu_core.train.training import Training, named
from lowprec import Accumulation, Key
from lowprec.processor import in_default_state
from lowprec.statistics import UpdateCount


def _unread(execution: Execution) -> list[str]:
    """What an Execution says beside the usual that the direct engine does not read."""
    usual, names = Execution(), ("system", "sharded", "stages", "streamed", "overlap", "update_overhead")
    if execution.engine != "direct":
        return []
    return [name for name in names if getattr(execution, name) != getattr(usual, name)]


class Reports:
    """The properties and methods of a `TrainLoop` that do not change it."""

    training: Training
    execution: Execution
    target: Target
    precision: Precision
    block: Block
    accumulations: Mapping[int, Accumulation]
    _stepper: Stepper

    @property
    def step(self) -> int:
        """Steps done."""
        return self._stepper.steps.step

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Steps that changed nothing, with what was wrong."""
        return self._stepper.steps.skipped

    @property
    def not_finite(self) -> tuple[int, float] | None:
        """The first step whose loss was infinite or NaN, and that loss; None: there was none."""
        return self._stepper.steps.not_finite

    @property
    def key(self) -> Key:
        """The key of the run."""
        return self._stepper.steps.key

    @property
    def loss_scale(self) -> float | None:
        """What the loss of the next step is multiplied by for its gradients; None: nothing."""
        scale = self._stepper.steps.scale
        return None if scale is None else float(scale.value)

    @property
    def params(self) -> Any:
        """The parameters after the steps done, nested as given, in the precision's weight format."""
        return self._nested()["params"]

    @property
    def model_state(self) -> Any:
        """What the model carries after the steps done; None where it carries nothing."""
        return self._nested().get("model")

    def _nested(self) -> dict[str, Any]:
        nested: dict[str, Any] = unflatten(self._stepper.prepared.tree, self._stepper.runner.read())
        return nested

    @property
    def profile(self) -> Profile | None:
        """The machine's account of the last step: cycles, memory, exchange; None on the direct engine.

        With `steps_per_call` its `call` is the account of as many last steps in one call. Before these steps both are
        of such that are not skipped.
        """
        return self._stepper.profile

    @property
    def system_profile(self) -> SystemProfile | None:
        """What an update takes on the chips of all replicas and stages: schedule, all-reduce, update and host; of one
        chip too, which is a system of one. None on the direct engine, and where the tiles' vertices run."""
        bill, planned = self._stepper.runner.bill, self._stepper.prepared.planned
        return None if bill is None else system_profile(planned, bill)

    @property
    def watched(self) -> Record | None:
        """The record of a watched run so far; it prints its ten worst values. None: not watched."""
        return None if self._stepper.watching is None else self._stepper.watching.record

    def __str__(self) -> str:
        """The loop in a few lines: what is trained, how, how far, at what cost."""
        training, execution = self.training, self.execution
        leaves = flatten(self.params)[0]
        micro_batches = "".join(f", {inner.count} micro-batches a step" for inner, _ in regions_of(self.block, Loop))
        lines = [
            f"TrainLoop: {self.step} steps of {named(training.optimizer)} on {self.target.name}, "
            f"engine {execution.engine}",
            f"  {self.precision.words()}",
            f"  {sum(leaf.size for leaf in leaves):,} parameters in {len(leaves)} arrays{micro_batches}",
        ]
        if self.loss_scale is not None:
            lines.append(f"  loss scale {self.loss_scale:g}, {len(self.skipped)} steps skipped")
            # The last one alone: a scale that begins far too large skips many steps in a row.
            lines += [f"    last: step {s.step}, {', '.join(s.names)}" for s in self.skipped[-1:]]
        if training.draws_on_tiles:
            lines.append(f"  random bits of the tiles' workers, {read_random(training.random, self.key)}")
        if told := foreign(training, execution):
            lines.append(f"  {told}")
        if self.not_finite is not None:
            lines.append("  the loss of step {} is {}".format(*self.not_finite))
        if unread := _unread(execution):
            lines.append(f"  the direct engine has no account, which alone reads {', '.join(unread)}")
        if (profile := self.profile) is not None:
            memory = profile.memory
            took, whose = f"{profile.cycles:,} cycles = {profile.microseconds:,.2f} us a step", ""
            if execution.chips > 1 and (whole := self.system_profile) is not None:
                took = f"{1e6 * whole.seconds_per_update:,.2f} us a step on {copies(whole)}"
                whose = "of the slowest stage "
            lines.append(
                f"  {took}; fullest tile {whose}{memory.peak_bytes:,} of "
                f"{memory.available:,} bytes; {memory.remote:,} bytes in streaming memory"
            )
            lines += [f"  {name}: {words}" for name, words in call_facts(profile, "steps").items()]
        return "\n".join(lines)

    @in_default_state
    def count_updates(self, batch: Any) -> UpdateCount:
        """Counts which weight updates the next step would lose and keep, without doing that step.

        It is computed directly, with random bits of the key whichever the run takes.
        """
        counter = UpdateCounter()
        # Only these are told to the counter: a chain of elementwise equations elsewhere stays one pass.
        updates = frozenset(equation.number for equation in equations_of(self.block) if equation.role == "update")
        self._stepper.rehearse(batch, counter, updates)
        return counter.total

    def sums(self) -> dict[str, tuple[Equation, Accumulation]]:
        """Every product and sum of the step by name, with the order and types in which it is made."""
        by_number = {each.number: each for each in equations_of(self.block)}
        made = ((by_number[number], order) for number, order in self.accumulations.items())
        return {equation.name: (equation, order) for equation, order in made}

    def precision_table(self, width: int = WIDTH) -> Table:
        """A table of the step's equations: name, formats, format of partial sums, rounding and source line.

        Args:
            width: characters of a line; long names are shortened to fit.
        """
        return precision_table(self.block, self.precision, width)

    def words(self) -> str:
        """The precision and every product and sum in words, on the tiles with its place and cost."""
        plan = self._stepper.runner.plan
        sums = (f"{name}: {_shapes(each)}; {order.words()}" for name, (each, order) in self.sums().items())
        lines = sums if plan is None else plan.words().splitlines()
        return "\n".join([f"  {self.precision.words()}", *(f"  {line}" for line in lines)])


def _shapes(equation: Equation) -> str:
    return f"{' @ '.join(str(x.type) for x in equation.operands)} -> {equation.output.type}"
