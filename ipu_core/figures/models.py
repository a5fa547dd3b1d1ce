"""What computes our figures, by the names that the lists of figures say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipu_core.figures import arithmetic, effects, machines, systems, training

MODELS: Mapping[str, Callable[..., float]] = {
    "chip": machines.chip,
    "system": systems.system,
    "reduced": systems.reduced,
    "run": systems.run,
    "product": machines.product,
    "amp": machines.amp,
    "supervisor": machines.supervisor,
    "codelet": machines.codelet,
    "pipeline": machines.pipeline,
    "ring": machines.ring,
    "derived": arithmetic.derived,
    "logs": arithmetic.logs,
    "line": arithmetic.line,
    "joules": arithmetic.joules,
    "packing": training.packed,
    "packing_speed": training.packing_speed,
    "recipe": training.recipe_says,
    "vanishing": training.vanishing,
    "second_moment": training.second_moment,
    "unit_factor": training.unit_factor,
    "parameters": training.parameters,
    "harmonic": effects.harmonic,
    "harmonic_error": effects.harmonic_error,
    "matvec": effects.matvec,
    "chunked": effects.chunked,
    "tensor_core": effects.tensor_core,
    "number": effects.number,
    "reproduce": effects.reproduced,
    "workload": machines.workload,
}
"""Each takes a figure's arguments and gives ours in the figure's unit."""
