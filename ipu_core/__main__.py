"""The command line: python -m ipu_core COMMAND, installed as ipu-core; the commands are those of `COMMANDS`."""

import argparse
import codecs
import contextlib
import difflib
import functools
import io
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ipu_core import figures, interruption, own, packing, reproduce, study, workloads
from ipu_core.chip.system import SYSTEMS
from ipu_core.chip.target import CHIPS
from ipu_core.diagnose.defaults import BUDGET, BY, TOLERANCE
from ipu_core.errors import IpuError, refusal_in_words
from ipu_core.ir.precision.precision import Precision
from ipu_core.study import live, typed
from ipu_core.study.executors import connected
from ipu_core.study.models.named import is_own
from ipu_core.study.published import words_of
from ipu_core.study.settings import (
    MODELS,
    OF_DATA,
    OF_SIZE,
    OF_TEXT,
    UNIT_RATES,
    USUAL,
    Point,
    Settings,
    tuned,
    unit_rate,
    usual_engine,
)
from ipu_core.study.typed import (
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    SEARCHES,
    check_name,
    parse_layers,
    parse_one_precision,
    parse_precisions,
)
from ipu_core.system.schedule import SCHEDULES as PIPELINES
from ipu_core.train import ENGINES, GENERATORS
from ipu_core.train.arguments import chip_of
from ipu_core.train.recipes import RECIPES
from lowprec import streams

if TYPE_CHECKING:
    from ipu_core.study.results import Study

COMMANDS = "study|sweep|train|profile|blame|reproduce|figures|packing|demo"
PLAIN = {"±": "+-"}
DEFAULT = Settings()
TRAINING = ("steps", "lr", "schedule", "engine")  # options that change nothing of what a step costs
USUAL_OF_MODELS = {
    "precision": PRECISIONS[-1], "target": DEFAULT.target, "micro_batches": 1, "recompute": DEFAULT.recompute,
    "replicas": 1, "collective": None,
}  # fmt: skip
OF_SYSTEMS = (
    "system", "stages", "pipeline_schedule", "global_batch", "host_samples_per_second", "configurations",
)  # fmt: skip
OPTION = {"pipeline_schedule": "schedule"}
"""What an option is called where its name here is another."""
OF_WORKLOADS = ("stage", "micro_batch", "update_overhead", *OF_SYSTEMS)


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line on standard error and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    0; 2 for bad input, a failed point or a file that could not be written; 130 after Ctrl-C, 143 after SIGTERM; of
    what is printed see `streams.guarded`.
    """
    # first: an error while arguments are read must be printable, too
    _print_anywhere()
    return streams.guarded("ipu-core", functools.partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    older = "--optimiser"  # as version 0.1.0 spelt it
    arguments = [f"--optimizer{word.removeprefix(older)}" if word.startswith(older) else word for word in arguments]
    given = parser.parse_args(arguments)
    try:
        # until here a Ctrl-C ended the process at once; from here on somebody catches it
        interruption.restore()
        if getattr(given, "config", None) is not None:
            # the file's options first: argparse takes the last, so what was typed wins
            given = parser.parse_args([given.command, *_from_file(given), *arguments[1:]])
        if given.command == "profile":
            _filled(given, parser)
        _from_recipe(given)
        return int(given.run(given))
    # an OSError of the output itself: there is nowhere to print it, and `guarded` has the exit code
    except streams.Unprintable:
        raise
    except (ValueError, ImportError, IpuError, OSError, MemoryError) as error:
        print(f"{parser.prog} {given.command}: {_in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        goes_on = "finished points are kept, the same command goes on from here"
        kept = f"; {goes_on}" if given.command in ("study", "sweep", "train") else ""
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            print(f"\n{interruption.WORDS[interruption.number_of(error)]}{kept}", file=sys.stderr)
        return interruption.exit_code(error)


def _filled(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Fills in what is usual for a model, where one is profiled and no workload.

    Raises:
        ValueError: an option that is not for what is profiled.
    """
    usual = vars(parser.parse_args(["profile"]))
    said = [name for name, value in vars(given).items() if value != usual[name]]
    if given.name in workloads.NAMES:
        known = ("name", "out", "json", *OF_WORKLOADS, *USUAL_OF_MODELS)
        if others := [name for name in said if name not in known]:
            options = ", ".join(map(_option, known[1:]))
            raise ValueError(f"{_option(others[0])} is not for a workload, which has {options}")
        return
    if given.name is not None and given.name not in MODELS and not is_own(given.name):
        like = difflib.get_close_matches(given.name.replace("_", "-"), workloads.NAMES, 1)
        if like:
            raise ValueError(f"there is no model {given.name!r}: is it the workload {like[0]}?")
    if others := [name for name in said if name in OF_WORKLOADS]:
        there = ", ".join(workloads.NAMES)
        raise ValueError(f"{_option(others[0])} is for workloads, which are {there}")
    for name, value in USUAL_OF_MODELS.items():
        setattr(given, name, value if getattr(given, name) is None else getattr(given, name))


def _option(name: str) -> str:
    return f"--{OPTION.get(name, name).replace('_', '-')}"


def _from_recipe(given: argparse.Namespace) -> None:
    """Says the options that a recipe stands for; what was typed wins, but for the optimizer, which is the recipe.

    Raises:
        ValueError: no such recipe, what is missing of it, another model or optimizer.
    """
    if getattr(given, "recipe", None) is None:
        return
    if "bert" not in (given.name, given.model):
        raise ValueError("--recipe is for bert, which the recipes trained")
    if given.optimizer is not None:
        raise ValueError(f"--recipe says the optimizer: leave --optimizer {given.optimizer} out")
    made = words_of(given.recipe)
    usual = {"precisions": list(PRECISIONS), "precision": (PRECISIONS[-1], "fp16.16/nearest")}
    typed_too = [name for name in ("stash", "loss_scale") if getattr(given, name) is not None]
    typed_too += ["precisions"] if getattr(given, "precisions", usual["precisions"]) != usual["precisions"] else []
    typed_too += ["precision"] if getattr(given, "precision", PRECISIONS[-1]) not in usual["precision"] else []
    if typed_too:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in typed_too)
        print(f"ipu-core: not the recipe's, but as typed: {names}", file=sys.stderr)
    given.optimizer = made.optimizer
    given.stash = given.stash or made.stash
    if given.loss_scale is None:
        given.loss_scale = "none" if made.loss_scale is None else made.loss_scale
    if getattr(given, "precisions", None) == list(PRECISIONS):
        given.precisions = [PRECISIONS[0], made.precision]
    if getattr(given, "precision", None) in (PRECISIONS[-1], "fp16.16/nearest"):
        given.precision = made.precision
    if given.micro_batches == 1:
        print(
            f"ipu-core: the recipe adds up {made.micro_batches} micro-batches, here is one of the whole batch: "
            "--micro-batches says another number",
            file=sys.stderr,
        )


def _in_words(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError):
        return refusal_in_words(error) or type(error).__name__
    # messages of several lines (a plan in words) as one
    text = " ".join(str(error).split()) or type(error).__name__
    # tile memory that is too small says so itself: only Python's own has no words
    if isinstance(error, MemoryError) and not isinstance(error, IpuError):
        return f"not enough memory: {text}"
    return text


def _print_anywhere() -> None:
    """Where a terminal's encoding lacks a character, something like it is printed instead of raising an error."""
    codecs.register_error("plain", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # an encoding without the character (LANG=C) would end a study at its first table
            stream.reconfigure(errors="plain")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ipu-core", description="Training under the arithmetic of the IPU, on a modelled machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar=COMMANDS)
    many = _command(commands, "study", _study, "train in several precisions and seeds; table, picture, resumable")
    many.add_argument("--precisions", nargs="+", default=list(PRECISIONS), metavar="P", help=_help("", PRECISIONS))
    many.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    many.add_argument("--workers", type=typed.count, help="processes (default: one per core)")
    many.add_argument("--executor", metavar="ADDRESS", help="a cluster's workers instead, as in dask://localhost:8786")
    _training(many)
    _output(many, "results/study")
    over = _command(
        commands, "sweep", _sweep, "train over axes of formats, roundings, rates; table, picture, resumable"
    )
    over.add_argument(
        "--axis", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"),
        help="what is varied and its values and ranges, as in --axis weights 'e8m10 ... e8m1' e5m2; several times",
    )  # fmt: skip
    over.add_argument("--base", default="fp32.32", help="the precision that values are set on top of (fp32.32)")
    over.add_argument("--search", default="each", help=_help("each", SEARCHES))
    over.add_argument("--points", type=typed.count, help="of --search random")
    over.add_argument("--within", type=float, default=0.02, help="of the base, for --search bisect (default 0.02)")
    over.add_argument("--by", default="final_loss", help="what decides: final_loss or a measure (default final_loss)")
    over.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    _training(over)
    over.add_argument("--out", type=typed.folder, default=Path("results/sweep"), help="default results/sweep")
    over.add_argument("--threads", type=typed.count, default=1, help="of lowprec's loops (default 1)")
    train = _command(commands, "train", _train, "train in one precision and keep the parameters")
    train.add_argument("--precision", default=PRECISIONS[-1], help=_help(PRECISIONS[-1], PRECISIONS))
    train.add_argument("--seed", type=int, default=0, help="default 0")
    _training(train)
    _output(train, "results/train")
    profile = _command(
        commands, "profile", _profile,
        "plan and account one step of a model, or of a workload as it ran, beside what was measured: "
        f"{', '.join(workloads.NAMES)}",
    )  # fmt: skip
    profile.add_argument("--precision", default=PRECISIONS[-1], help=_help(PRECISIONS[-1], PRECISIONS))
    profile.add_argument("--out", type=typed.folder, help="also write profile.json, profile.html and trace.json there")
    profile.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two folders that it wrote, side by side (with --out a page too)"
    )
    profile.add_argument(
        "--stage", type=int, metavar="N", help="of a workload, from 1 (default: the slowest published)"
    )
    profile.add_argument(
        "--micro-batch", type=typed.count, metavar="ROWS", help="of a workload (default: as published)"
    )
    profile.add_argument(
        "--update-overhead", type=float, metavar="SECONDS",
        help="of a workload: of an update, beside the account (default: what was fitted to the run; 0: none)",
    )  # fmt: skip
    _of_system(profile)
    profile.add_argument("--json", action="store_true", help="all of it as JSON, of a workload under fixed names")
    # `profile` has no such options, and `_settings` reads them for every command
    profile.set_defaults(steps=None, lr=None, schedule=DEFAULT.schedule, engine=DEFAULT.engine)
    # what is not typed is as usual for a model, and as published for a workload: see `_filled`
    profile.set_defaults(**dict.fromkeys(USUAL_OF_MODELS))
    why = _command(commands, "blame", _blame, "why a precision learns less than float32: equation, cause, cure")
    why.add_argument("--precision", default="fp16.16/nearest", help=_help("fp16.16/nearest", PRECISIONS))
    why.add_argument("--seed", type=int, default=0, help="default 0")
    why.add_argument("--tolerance", type=float, help=f"may be missing (default {TOLERANCE:g})")
    why.add_argument("--budget", type=float, help=f"what it may take, in runs (default {BUDGET:g})")
    why.add_argument("--out", type=typed.folder, help="also write blame.txt there, which a study's page shows")
    _training(why)
    why.add_argument("--by", choices=BY, help="instead, what each layer or cause costs: alone low, and all but it")
    again = commands.add_parser("reproduce", help="published results made again: the claim, our figure, the verdict")
    again.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(reproduce.NAMES)} (default: all of them)")
    again.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    again.add_argument("--share", type=float, default=1.0, help="of the usual number of steps (default 1)")
    again.set_defaults(run=_reproduce)
    beside = commands.add_parser("figures", help="published figures of the machine and of training on it, beside ours")
    beside.add_argument(
        "name", nargs="?", metavar="NAME", help="a figure, the beginning of some, a list (default: all)"
    )
    beside.add_argument("--json", action="store_true", help="as JSON, with fixed names")
    beside.add_argument("--models", action="store_true", help="those too that take minutes: workloads, trainings")
    beside.set_defaults(run=_figures)
    rows = commands.add_parser("packing", help="several sequences a row: what it saves for a histogram of lengths")
    rows.add_argument("name", metavar="NAME", help=f"{', '.join(packing.NAMES)}, or a file.csv of length,count")
    rows.add_argument("--length", type=int, help="tokens of a pack (default: the published, or the longest sequence)")
    rows.add_argument("--depth", type=typed.count, help="most sequences of a pack (default: a row for each of several)")
    rows.add_argument("--strategy", choices=("spfhp", "lpfhp", "nnlshp"), help="default spfhp, without --depth several")
    rows.add_argument("--out", type=Path, metavar="FILE.png", help="also draw it")
    rows.set_defaults(run=_packing)
    quick = commands.add_parser("demo", help="half a minute: one rounding explained, three precisions trained")
    quick.set_defaults(run=lambda _: study.command.demo())
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=words)
    parser.set_defaults(run=run)
    parser.add_argument(
        "name", nargs="?", metavar="MODEL",
        help=f"{_help(DEFAULT.model, MODELS)}; or FILE.py:NAME, a function that gives (loss, params, batches), or "
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
    parser.add_argument("--pack", type=typed.count, help="bert: sequences of a row, at most (default 1)")
    parser.add_argument("--batch", type=int, help=_usual("rows a step", "batch"))
    parser.add_argument(
        "--optimizer",
        help=f"{_help(DEFAULT.optimizer, OPTIMIZERS)} and options, as in lamb/weight_decay=0.01/clip_norm=1",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="PATTERN/...",
        help="parameters of their own, as in '*.bias/lr=2/decay=0' or 'embedding/frozen'; the first match counts",
    )
    parser.add_argument("--micro-batches", type=int, default=1, help="parts of each batch (default 1)")
    parser.add_argument("--replicas", type=int, default=1, help="chips that share the rows of a batch (default 1)")
    parser.add_argument(
        "--collective", metavar="ALGORITHM/...", help="how replicas add their gradients up, as "
        "ring/wire=float16/rounding=stochastic (default: a ring in the precision's own format)",
    )  # fmt: skip
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
    parser.add_argument("--random", default=DEFAULT.random, help=f"{_help(DEFAULT.random, GENERATORS)}: of the tiles")
    parser.add_argument("--config", metavar="FILE", help="a .toml file of options; what is said here goes before it")
    parser.add_argument(
        "--target",
        default=DEFAULT.target,
        help=f"{_help(DEFAULT.target, CHIPS)}; of replicas a system, such as {SYSTEMS[4]}",
    )
    return parser


def _of_system(parser: argparse.ArgumentParser) -> None:
    """Options of a workload on many chips."""
    parser.add_argument("--system", metavar="NAME", help=f"of a workload, many chips: {', '.join(SYSTEMS)}")
    parser.add_argument("--stages", type=typed.count, metavar="K", help="chips of a replica (default: as published)")
    parser.add_argument(
        "--schedule", "--pipeline-schedule", dest="pipeline_schedule", metavar="NAME", help=_help("grouped", PIPELINES)
    )
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples, instead of --micro-batches")
    parser.add_argument(
        "--configurations", action="store_true", default=None, help="replicas, stages and micro-batches that fit, in "
        "seconds: of --global-batch, and where said of --stages and --micro-batch alone",
    )  # fmt: skip
    parser.add_argument(
        "--host-samples-per-second", type=float, metavar="N", help="what all hosts together can prepare"
    )


def _training(parser: argparse.ArgumentParser) -> None:
    """Options that change what is trained and not what a step costs."""
    parser.add_argument("--steps", type=int, help=_usual("updates", "steps"))
    parser.add_argument("--lr", type=float, help=_usual("learning rate", "lr"))
    parser.add_argument(
        "--schedule",
        default=DEFAULT.schedule,
        help=f"{_help(DEFAULT.schedule, SCHEDULES)} and options, as in cosine/warmup=100/end=0.1",
    )
    parser.add_argument("--engine", help=_help("tiles, or direct where the chip has no unit for a format", ENGINES))


def _output(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("--out", type=typed.folder, default=Path(folder), help=f"output folder (default {folder})")
    parser.add_argument("--force", action="store_true", help="if it holds another study, begin one beside it")
    parser.add_argument("--threads", type=typed.count, default=1, help="threads in each process (default 1)")
    parser.add_argument("--watch", type=int, metavar="N", help="every N steps, what rounding does to each value")


def _settings(given: argparse.Namespace, precisions: Sequence[str]) -> Settings:
    model = given.name or given.model or DEFAULT.model
    if given.model not in (None, model):
        raise ValueError(f"two models are named, {given.name} and {given.model}: give one")
    if is_own(model):
        _refuse_of_models(given, model)
    else:
        check_name("model", model, MODELS)
    if given.data != DEFAULT.data and model not in OF_DATA and not is_own(model):
        raise ValueError(f"--data is for {', '.join(OF_DATA)}, not for {model}")
    names = ("steps", "batch", "lr", "optimizer", "text", "pack", "size", "stash", "dropout")
    said = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    sizes = {name: getattr(given, name) for name in ("width", "heads", "context") if getattr(given, name) is not None}
    if model in OF_TEXT:
        if given.layers is not None:
            sizes["layers"] = int(given.layers) if given.layers.isdecimal() else given.layers
        said["language_model"] = replace(USUAL[model].get("language_model", DEFAULT.language_model), **sizes)
    elif sizes or given.text is not None:
        raise ValueError(f"--{next(iter(sizes), 'text')} is for {' and '.join(OF_TEXT)}, not for {model}")
    elif given.layers is not None and model in OF_SIZE:
        raise ValueError(f"--layers is not for {model}, whose sizes have names: --size")
    elif given.layers is not None:
        said["layers"] = parse_layers(given.layers)
    # weights of deviation 1 want another learning rate; one that is typed stays
    if given.unit_scaled or given.mup or _in_units(given, precisions):
        said.setdefault("lr", unit_rate(model, said, given.mup))
        said["loss_scale"] = None  # it needs none
    if given.loss_scale is not None:
        said["loss_scale"] = None if given.loss_scale == "none" else given.loss_scale
    return Settings(
        data=given.data, target=given.target, engine=_engine(given, precisions), model=model, schedule=given.schedule,
        groups=tuple(given.group), micro_batches=given.micro_batches, recompute=given.recompute,
        streamed=tuple(given.streamed), overlap=given.overlap, random=given.random,
        unit_scaled=given.unit_scaled, mup=given.mup, replicas=given.replicas, collective=given.collective,
        sharded=tuple(given.sharded),
        # what was typed before what is usual for the model
        **{**tuned(model, said), **said},
    )  # fmt: skip


def _refuse_of_models(given: argparse.Namespace, model: str) -> None:
    """Refuses options that say what a model in a file says itself."""
    of_models = ("layers", "width", "heads", "context", "text", "batch", "pack", "size", "stash", "dropout", "recipe")
    said = [name for name in of_models if getattr(given, name) is not None]
    said += ["data"] * (given.data != DEFAULT.data) + ["unit-scaled"] * given.unit_scaled + ["mup"] * given.mup
    if said:
        raise ValueError(f"--{said[0]} is for {', '.join(MODELS)}: {model} says its model and data itself")


def _engine(given: argparse.Namespace, precisions: Sequence[str]) -> str:
    """The engine that is asked for, or the usual one: the reason is said where that is not the tiles."""
    if given.engine is not None:
        return str(given.engine)
    engine, why = usual_engine(chip_of(given.target), precisions, given.stash)
    if why is not None:
        print(f"ipu-core: {why}", file=sys.stderr)
    return engine


def _in_units(given: argparse.Namespace, precisions: Sequence[str]) -> bool:
    """Whether every precision is under unit scaling by its name.

    Raises:
        ValueError: some are, and no learning rate is given that is for those and for the others.
    """
    scaled = [name for name in precisions if Precision.parse(name).unit_scaled]
    # one rate for both kinds would be far off for one of them
    if scaled and len(scaled) < len(precisions) and given.lr is None:
        raise ValueError(
            f"{scaled[0]} begins with other weights than the others and wants another learning rate (such as "
            f"{UNIT_RATES['unit']:g}): give --lr for all, or --unit-scaled, or a study of its own"
        )
    return len(scaled) == len(precisions)


def _study(given: argparse.Namespace) -> int:
    precisions = parse_precisions(given.precisions)
    settings = _settings(given, precisions)
    if given.executor is not None and given.workers is not None:
        raise ValueError("--workers are processes of this machine, an --executor has workers of its own: give one")
    with connected(given.executor) as executor:
        return _kept(given, settings, precisions, range(given.seeds), workers=given.workers, executor=executor)


def _sweep(given: argparse.Namespace) -> int:
    axes: dict[str, list[Any]] = {}
    for name, *values in given.axis:
        axes.setdefault(name, []).extend(values)
    if not axes or not all(axes.values()):
        raise ValueError("a sweep is over axes: --axis weights 'e8m10 ... e8m1' --axis lr 0.1 0.01")
    settings = _settings(given, study.command.swept(axes, given.base))
    try:
        made = study.command.sweep_of(
            settings, axes, given.out, own.models.load, base=given.base, search=given.search, points=given.points,
            by=given.by, within=given.within, seeds=given.seeds, threads=given.threads,
        )  # fmt: skip
    except TypeError as wrong:  # a value of another kind than its axis: what was typed, and no mistake of ours
        raise ValueError(str(wrong)) from wrong
    for point, error in made.failures.items():
        print(f"{point} failed: {error}", file=sys.stderr)
    print(f"written to {given.out}")
    return 2 if made.failures else 0


def _train(given: argparse.Namespace) -> int:
    precision = parse_one_precision(given.precision)
    return _kept(given, _settings(given, [precision]), (precision,), [given.seed], workers=1, keep_parameters=True)


def _kept(
    given: argparse.Namespace, settings: Settings, precisions: tuple[str, ...], seeds: Sequence[int], **more: Any
) -> int:
    """A study in its folder; its bars are shown before what trains its points is loaded."""
    points = [str(Point(name, seed)) for seed in seeds for name in precisions]
    with live.begun(settings.steps, points) as view:
        made, folder = study.command.study(
            settings, precisions, tuple(seeds), given.out, threads=given.threads, force=given.force, watch=given.watch,
            view=view, load=own.models.load, **more,
        )  # fmt: skip
    return _finish(made, folder)


def _profile(given: argparse.Namespace) -> int:
    if given.compare is not None:
        study.profiles.compare_profiles(tuple(given.compare), given.out)
        return 0
    if given.name in workloads.NAMES:
        again = given.recompute
        if again not in (None, False, ("layers",)):
            raise ValueError("--recompute of a workload is none or layers")
        if given.system is not None:
            return _on_system(given)
        if said := [name for name in (*OF_SYSTEMS, "replicas", "collective") if getattr(given, name) is not None]:
            raise ValueError(f"{_option(said[0])} is of many chips: --system says which")
        workloads.command.profile(
            given.name, given.stage, micro_batch=given.micro_batch, micro_batches=given.micro_batches,
            target=given.target, precision=given.precision,
            recompute=_recomputed(again),
            update_overhead=given.update_overhead, as_json=given.json, folder=given.out,
        )  # fmt: skip
        return 0
    precision = parse_one_precision(given.precision)
    study.profiles.profile(_settings(given, [precision]), precision, given.out, own.models.load, as_json=given.json)
    return 0


def _on_system(given: argparse.Namespace) -> int:
    for name, why in {"target": "which --system says", "stage": "and --system takes the slowest"}.items():
        if getattr(given, name) is not None:
            raise ValueError(f"--{name} is of one chip, {why}")
    if given.configurations:
        others = (
            "replicas", "micro_batches", "collective", "precision", "recompute", "update_overhead", "out",
            "host_samples_per_second",
        )  # fmt: skip
        if said := [name for name in others if getattr(given, name) is not None] + ["json"] * given.json:
            raise ValueError(f"{_option(said[0])} is not for --configurations, which finds them")
        workloads.system_command.choose(
            given.name, given.system, given.global_batch, stages=given.stages, micro_batch=given.micro_batch,
            schedule=given.pipeline_schedule,
        )  # fmt: skip
        return 0
    workloads.system_command.profile(
        given.name, given.system, stages=given.stages, replicas=given.replicas, micro_batch=given.micro_batch,
        micro_batches=given.micro_batches, global_batch=given.global_batch, schedule=given.pipeline_schedule,
        collective=given.collective, precision=given.precision, recompute=_recomputed(given.recompute),
        update_overhead=given.update_overhead, host_samples_per_second=given.host_samples_per_second,
        as_json=given.json, folder=given.out,
    )  # fmt: skip
    return 0


def _recomputed(again: object) -> str | None:
    return None if again is None else "layers" if again else "none"


def _blame(given: argparse.Namespace) -> int:
    precision = parse_one_precision(given.precision)
    limits = {name: value for name in ("tolerance", "budget") if (value := getattr(given, name)) is not None}
    if given.by is not None and limits:
        raise ValueError(f"--{next(iter(limits))} is not for --by {given.by}, which does two runs for each {given.by}")
    study.command.explain(
        _settings(given, [precision]), precision, given.seed, given.by, given.out, own.models.load, **limits
    )
    return 0


def _packing(given: argparse.Namespace) -> int:
    packing.command.show(given.name, given.length, given.depth, given.strategy, given.out)
    return 0


def _figures(given: argparse.Namespace) -> int:
    figures.command.show(given.name, as_json=given.json, models=given.models)
    return 0


def _reproduce(given: argparse.Namespace) -> int:
    return reproduce.reproduce(given.name, tuple(range(given.seeds)), given.share)


def _finish(made: "Study", folder: Path) -> int:
    for point, error in made.failures.items():
        print(f"{point} failed: {error}", file=sys.stderr)
    for name, error in made.unwritten.items():
        print(f"{name} could not be written: {error}", file=sys.stderr)
    # a folder may hold files of others, which this run did not write
    names = sorted(path.name for path in folder.iterdir() if study.files.is_own(path.name))
    print(f"written to {folder}: {', '.join(names)}")
    return 2 if made.failures or made.unwritten else 0


def _from_file(given: argparse.Namespace) -> list[str]:
    """The options that a configuration file says, as they would be typed.

    Raises:
        ValueError: it cannot be read, or says what is no option of the command.
    """
    try:
        table = tomllib.loads(Path(given.config).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the configuration {given.config} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{given.config}: {error}") from error
    # what argparse knows, so that a new option is one of the file, too
    known = {name.replace("_", "-") for name in vars(given)} - {"command", "run", "config", "name"}
    words = []
    for key, value in table.items():
        name = "optimizer" if key == "optimiser" else key  # as version 0.1.0 spelt it
        if name not in known:
            raise ValueError(f"{given.config}: unknown option {name!r}; there are {', '.join(sorted(known))}")
        # two models that differ are refused, and what was typed stands
        if name == "model" and (given.name or given.model):
            continue
        if name in TRAINING and given.command == "profile":  # one file for all commands
            continue
        if name in ("precisions", "recompute") and isinstance(value, list):
            # as one word: --precisions takes several, and the last occurrence alone would count
            value = ",".join(map(str, value))
        if isinstance(value, bool):
            words += [f"--{name}"] if value else []
        else:
            words += [f"--{name}={item}" for item in (value if isinstance(value, list) else [value])]
    return words


def _usual(words: str, field: str) -> str:
    """Help that says a field's default, and each model's own."""
    own = "".join(f", {model} {usual[field]:g}" for model, usual in USUAL.items())
    return f"{words} (default {getattr(DEFAULT, field):g}{own})"


def _help(default: str, names: Any) -> str:
    return f"{', '.join(names)}" + (f" (default {default})" if default else "")


if __name__ == "__main__":
    raise SystemExit(main())
