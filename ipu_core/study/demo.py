"""Half a minute of what this is about: one number rounded in every mode, then three precisions trained side by side."""

from functools import lru_cache

from ipu_core.study.compare import compare
from ipu_core.study.models import mlp
from ipu_core.study.settings import Settings
from ipu_core.train.data import dataset as data
from ipu_core.train.optim import Sgd
from lowprec import explain

WEIGHT, UPDATE = 0.5, 0.0001


def demo(steps: int = 4000) -> int:
    """Prints to the terminal; writes no file. Returns 0, or 2 if a point failed.

    Args:
        steps: Updates per point.
    """
    print(f"A weight of {WEIGHT} in float16 receives an update of {UPDATE}:\n")
    print(explain(WEIGHT + UPDATE, "float16"))
    print("\nThe same on real images: a perceptron on scikit-learn's digits, small updates, two seeds.\n")
    settings = Settings(layers=(64, 96, 10), steps=steps, lr=0.003)
    task = data.digits()
    problem = mlp.problem(settings, task)
    drawn = lru_cache(maxsize=2)(problem.batches)  # which keeps the permutation of the epoch
    made = compare(
        problem.loss,
        problem.params,
        lambda seed, step: drawn(seed)(step),
        ["fp32.32", "fp16.16/nearest", "fp16.16/stochastic"],
        optimizer=Sgd(settings.lr),
        steps=settings.steps,
        seeds=2,
        evaluate=problem.evaluate,
        engine="direct",
        title="digits, perceptron 64-96-10",
    )
    print(made)
    return 2 if made.failures else 0
