"""The parser of all commands: which there are, the options of each, and what runs it."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ipu_core import packing, reproduce, workloads
from ipu_core.command_line.commands import (
    run_blame,
    run_demo,
    run_figures,
    run_packing,
    run_profile,
    run_reproduce,
    run_study,
    run_sweep,
    run_train,
)
from ipu_core.command_line.options import of_model, of_output, of_system, of_training
from ipu_core.command_line.words import DEFAULT, USUAL_OF_MODELS, choice
from ipu_core.diagnose.defaults import BUDGET, BY, TOLERANCE
from ipu_core.study import typed
from ipu_core.study.typed import PRECISIONS, SEARCHES


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line on standard error and exit code 2, and options are typed in full.

    A beginning of an option would mean another one as soon as there are more.
    """

    def __init__(self, **how: Any) -> None:
        self.options: list[str] = []
        self.commands: Mapping[str, Parser] = {}
        super().__init__(allow_abbrev=False, **how)

    def add_argument(self, *names: Any, **how: Any) -> argparse.Action:
        added = super().add_argument(*names, **how)
        self.options += added.option_strings
        return added

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(given.command, unknown)}")
        return given

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try --help)\n")

    def _meant(self, command: str, unknown: Sequence[str]) -> str:
        """A question for the options of a command that the first unknown one is the beginning of, or is like."""
        first = next((word[2:].partition("=")[0] for word in unknown if word.startswith("--")), None)
        if not first:
            return ""
        names = [name[2:] for name in self.commands[command].options if name.startswith("--")]
        longer = [name for name in names if name.startswith(first)]
        like = longer[:3] or difflib.get_close_matches(first, names, 1, 0.7)
        return f": is it {' or '.join(f'--{name}' for name in like)}?" if like else ""


def parser_of_all() -> Parser:
    """The parser of `ipu-core`; what it makes has `run`, which takes it and returns the exit code."""
    parser = Parser(prog="ipu-core", description="Training under the arithmetic of the IPU, on a modelled machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for add in COMMANDS.values():
        add(commands)
    parser.commands = commands.choices
    return parser


def _study(commands: Any) -> None:
    parser = of_model(commands, "study", run_study, "train in several precisions and seeds; table, picture, resumable")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), metavar="P", help=choice("", PRECISIONS))
    parser.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    parser.add_argument("--workers", type=typed.count, help="processes (default: one per core)")
    parser.add_argument(
        "--executor", metavar="ADDRESS", help="a cluster's workers instead, as in dask://localhost:8786"
    )
    of_training(parser)
    of_output(parser, "results/study")


def _sweep(commands: Any) -> None:
    parser = of_model(
        commands, "sweep", run_sweep, "train over axes of formats, roundings, rates; table, picture, resumable"
    )
    parser.add_argument(
        "--axis", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"),
        help="what is varied and its values and ranges, as in --axis weights 'e8m10 ... e8m1' e5m2; several times",
    )  # fmt: skip
    parser.add_argument("--base", default="fp32.32", help="the precision that values are set on top of (fp32.32)")
    parser.add_argument("--search", default="each", help=choice("each", SEARCHES))
    parser.add_argument("--points", type=typed.count, help="of --search random")
    parser.add_argument("--within", type=float, default=0.02, help="of the base, for --search bisect (default 0.02)")
    parser.add_argument("--by", default="final_loss", help="what decides: final_loss or a measure (default final_loss)")
    parser.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    of_training(parser)
    parser.add_argument("--out", type=typed.folder, default=Path("results/sweep"), help="default results/sweep")
    parser.add_argument("--threads", type=typed.count, default=1, help="of lowprec's loops (default 1)")


def _train(commands: Any) -> None:
    parser = of_model(commands, "train", run_train, "train in one precision and keep the parameters")
    parser.add_argument("--precision", default=PRECISIONS[-1], help=choice(PRECISIONS[-1], PRECISIONS))
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    of_training(parser)
    of_output(parser, "results/train")


def _profile(commands: Any) -> None:
    parser = of_model(
        commands, "profile", run_profile,
        "plan and account one step of a model, or of a workload as it ran, beside what was measured: "
        f"{', '.join(workloads.NAMES)}",
    )  # fmt: skip
    parser.add_argument("--precision", default=PRECISIONS[-1], help=choice(PRECISIONS[-1], PRECISIONS))
    parser.add_argument("--out", type=typed.folder, help="also write profile.json, profile.html and trace.json there")
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two folders that it wrote, side by side (with --out a page too)"
    )
    parser.add_argument("--stage", type=int, metavar="N", help="of a workload, from 1 (default: the slowest published)")
    parser.add_argument("--micro-batch", type=typed.count, metavar="ROWS", help="of a workload (default: as published)")
    parser.add_argument(
        "--update-overhead", type=float, metavar="SECONDS",
        help="of a workload: of an update, beside the account (default: what was fitted to the run; 0: none)",
    )  # fmt: skip
    of_system(parser)
    parser.add_argument("--json", action="store_true", help="all of it as JSON, of a workload under fixed names")
    # `profile` has no such options, and `settings_of` reads them for every command
    parser.set_defaults(steps=None, lr=None, schedule=DEFAULT.schedule, engine=DEFAULT.engine)
    # what is not typed is as usual for a model, and as published for a workload: see `filled`
    parser.set_defaults(**dict.fromkeys(USUAL_OF_MODELS))


def _blame(commands: Any) -> None:
    parser = of_model(commands, "blame", run_blame, "why a precision learns less than float32: equation, cause, cure")
    parser.add_argument("--precision", default="fp16.16/nearest", help=choice("fp16.16/nearest", PRECISIONS))
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--tolerance", type=float, help=f"may be missing (default {TOLERANCE:g})")
    parser.add_argument("--budget", type=float, help=f"what it may take, in runs (default {BUDGET:g})")
    parser.add_argument("--out", type=typed.folder, help="also write blame.txt there, which a study's page shows")
    of_training(parser)
    parser.add_argument("--by", choices=BY, help="instead, what each layer or cause costs: alone low, and all but it")


def _reproduce(commands: Any) -> None:
    parser = commands.add_parser("reproduce", help="published results made again: the claim, our figure, the verdict")
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(reproduce.NAMES)} (default: all of them)")
    parser.add_argument("--seeds", type=typed.count, default=3, help="how many seeds (default 3)")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of steps (default 1)")
    parser.set_defaults(run=run_reproduce)


def _figures(commands: Any) -> None:
    parser = commands.add_parser("figures", help="published figures of the machine and of training on it, beside ours")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a figure, the beginning of some, a list (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, with fixed names")
    parser.add_argument("--models", action="store_true", help="those too that take minutes: workloads, trainings")
    parser.set_defaults(run=run_figures)


def _packing(commands: Any) -> None:
    parser = commands.add_parser("packing", help="several sequences a row: what it saves for a histogram of lengths")
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(packing.NAMES)}, or a file.csv of length,count")
    parser.add_argument("--length", type=int, help="tokens of a pack (default: the published, or the longest sequence)")
    parser.add_argument(
        "--depth", type=typed.count, help="most sequences of a pack (default: a row for each of several)"
    )
    parser.add_argument(
        "--strategy", choices=("spfhp", "lpfhp", "nnlshp"), help="default spfhp, without --depth several"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="also draw it")
    parser.set_defaults(run=run_packing)


def _demo(commands: Any) -> None:
    parser = commands.add_parser("demo", help="half a minute: one rounding explained, three precisions trained")
    parser.set_defaults(run=run_demo)


COMMANDS = {
    "study": _study, "sweep": _sweep, "train": _train, "profile": _profile, "blame": _blame, "reproduce": _reproduce,
    "figures": _figures, "packing": _packing, "demo": _demo,
}  # fmt: skip
