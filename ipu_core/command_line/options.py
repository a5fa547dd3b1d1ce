"""The options that several commands have."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipu_core.chip.system import SYSTEMS
from ipu_core.chip.target import CHIPS
from ipu_core.command_line.words import DEFAULT, choice, usual
from ipu_core.study import typed
from ipu_core.study.settings import MODELS, OF_SIZE, UNIT_RATES, USUAL
from ipu_core.study.typed import OPTIMIZERS, SCHEDULES
from ipu_core.system.schedule import SCHEDULES as PIPELINES
from ipu_core.train import ENGINES, GENERATORS
from ipu_core.train.recipes import RECIPES


def of_model(commands: Any, name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
    """A command that is about a model, with all options that say which and how it is planned."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=words)
    parser.set_defaults(run=run)
    for add in (_which_model, _rows_and_optimizer, _replicas, _scaling, _memory, _machine):
        add(parser)
    return parser


def _which_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="MODEL",
        help=f"{choice(DEFAULT.model, MODELS)}; or FILE.py:NAME, a function that gives (loss, params, batches), or "
        "torch:FILE.py:NAME, one that gives (module, loader, loss)",
    )  # fmt: skip
    parser.add_argument("--data", default=DEFAULT.data, help="digits, or an .npz with x_train y_train x_test y_test")
    parser.add_argument("--model", help="the model, where it is not named first")
    parser.add_argument(
        "--text", metavar="PATH", help="lm, bert: a file or folder (default: the standard library's sources)"
    )
    parser.add_argument(
        "--layers",
        help="widths such as 64-256-256-10 (cnn, resnet: channels between); lm, bert: how many (2)",
    )
    for field in ("width", "heads", "context"):
        of_lm, of_bert = (getattr(one, field) for one in (DEFAULT.language_model, USUAL["bert"]["language_model"]))
        parser.add_argument(f"--{field}", type=int, help=f"lm, bert: its {field} (default {of_lm}, {of_bert})")
    parser.add_argument(
        "--size", help=f"{', '.join(OF_SIZE)}: small (default), or as the talk had it: talk (gcn: large)"
    )
    parser.add_argument("--stash", metavar="FORMAT", help="bert: what its blocks read is kept so for their gradients")
    parser.add_argument("--dropout", type=float, help="bert: share of attention's weights left out (default 0)")
    parser.add_argument(
        "--recipe", metavar="NAME/chips=N",
        help=f"bert: {' or '.join(RECIPES)} (and beta1=, weight_decay=, gradient_sum= where these are not known): the "
        "optimizer, precision, loss scale and stash of a submission; the rate is --lr",
    )  # fmt: skip


def _rows_and_optimizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pack", type=typed.count, help="bert: sequences of a row, at most (default 1)")
    parser.add_argument("--batch", type=int, help=usual("rows a step", "batch"))
    parser.add_argument(
        "--optimizer",
        help=f"{choice(DEFAULT.optimizer, OPTIMIZERS)} and options, as in lamb/weight_decay=0.01/clip_norm=1",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="PATTERN/...",
        help="parameters of their own, as in '*.bias/lr=2/decay=0' or 'embedding/frozen'; the first match counts",
    )


def _replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--micro-batches", type=int, default=1, help="parts of each batch (default 1)")
    parser.add_argument("--replicas", type=int, default=1, help="chips that share the rows of a batch (default 1)")
    parser.add_argument(
        "--collective", metavar="ALGORITHM/...", help="how replicas add their gradients up, as "
        "ring/wire=float16/rounding=stochastic (default: a ring in the precision's own format)",
    )  # fmt: skip
    parser.add_argument(
        "--stages", type=typed.stages, default=1, metavar="K", help="chips of a replica, that share its layers: "
        "how many, or the first layer of each, as in embedding,layers.3 (default 1; of a workload: as published)",
    )  # fmt: skip
    parser.add_argument("--pipeline-schedule", default="grouped", metavar="NAME", help=choice("grouped", PIPELINES))


def _scaling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unit-scaled", action="store_true", help=f"unit scaling, no loss scale (default lr {UNIT_RATES['unit']:g})"
    )
    parser.add_argument(
        "--mup",
        action="store_true",
        help=f"unit scaling with u-muP's rules and learning rates, of adam or adamw (default lr {UNIT_RATES['mup']:g})",
    )
    parser.add_argument(
        "--loss-scale", type=typed.scale, metavar="S", help="a number, 'automatic' (lm's default) or 'none'"
    )


def _memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streamed",
        action="append",
        default=[],
        metavar="PATTERN",
        help="state or activations in streaming memory, besides what the precision says, as in 'params.*' or '*.gelu'",
    )
    parser.add_argument(
        "--sharded", action="append", default=[], metavar="PATTERN",
        help="state of which each replica keeps a shard, as in 'optimizer.*'",
    )  # fmt: skip
    parser.add_argument("--overlap", action="store_true", help="transfers with streaming memory beside computation")
    parser.add_argument(
        "--recompute", nargs="?", const=True, default=DEFAULT.recompute, type=typed.recompute, metavar="WHAT",
        help="forward values made again, not kept, where cheap; until temporaries peak at a share, as 0.8; or all of "
        "some parts, as 'blocks.*' or 'layers'",
    )  # fmt: skip


def _machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--random", default=DEFAULT.random, help=f"{choice(DEFAULT.random, GENERATORS)}: of the tiles")
    parser.add_argument("--config", metavar="FILE", help="a .toml file of options; what is said here goes before it")
    parser.add_argument(
        "--target",
        default=DEFAULT.target,
        metavar="NAME/...",
        help=f"{choice(DEFAULT.target, CHIPS)}; of replicas a system, such as {SYSTEMS[4]}; and any figures, as in "
        "bow/tiles=736 or bow-pod64/chips=4",
    )


def of_system(parser: argparse.ArgumentParser) -> None:
    """Options of a workload on many chips."""
    parser.add_argument(
        "--system", metavar="NAME/...",
        help=f"of a workload, many chips: {', '.join(SYSTEMS)}; and any figures, as in bow-pod64/chips=4",
    )  # fmt: skip
    parser.add_argument("--schedule", dest="pipeline_schedule", metavar="NAME", help="--pipeline-schedule")
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples, instead of --micro-batches")
    parser.add_argument(
        "--configurations", action="store_true", default=None, help="replicas, stages and micro-batches that fit, in "
        "seconds: of --global-batch, and where said of --stages and --micro-batch alone",
    )  # fmt: skip
    parser.add_argument(
        "--host-samples-per-second", type=float, metavar="N", help="what all hosts together can prepare"
    )


def of_training(parser: argparse.ArgumentParser) -> None:
    """Options that change what is trained and not what a step costs."""
    parser.add_argument("--steps", type=int, help=usual("updates", "steps"))
    parser.add_argument("--lr", type=float, help=usual("learning rate", "lr"))
    parser.add_argument(
        "--schedule",
        default=DEFAULT.schedule,
        help=f"{choice(DEFAULT.schedule, SCHEDULES)} and options, as in cosine/warmup=100/end=0.1",
    )
    parser.add_argument("--engine", help=choice("tiles, or direct where the chip has no unit for a format", ENGINES))


def of_output(parser: argparse.ArgumentParser, folder: str) -> None:
    """Options of what is written, in a folder."""
    parser.add_argument("--out", type=typed.folder, default=Path(folder), help=f"output folder (default {folder})")
    parser.add_argument("--force", action="store_true", help="if it holds another study, begin one beside it")
    parser.add_argument("--threads", type=typed.count, default=1, help="threads in each process (default 1)")
    parser.add_argument("--watch", type=int, metavar="N", help="every N steps, what rounding does to each value")
