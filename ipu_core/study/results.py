"""What a study found: its finished points, and the table, picture, page and files that show them."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipu_core.diagnose.watch import Record
from ipu_core.errors import refusal_in_words
from ipu_core.study.files import point_file
from ipu_core.study.page import study_page
from ipu_core.study.plot import Picture, plot
from ipu_core.study.point import RECORD
from ipu_core.study.rows import Row, Tabular, curve_rows, differences, row
from ipu_core.study.run import Event
from ipu_core.study.settings import Point
from ipu_core.study.store import Store, agree, open_store
from ipu_core.study.summary import summarise, table
from ipu_core.train.checkpoint import replacing
from ipu_core.train.table import Table

MOST_DRAWN = 16
"""Precisions whose curves one can still tell apart in a picture: a sweep of more has a picture of its own."""


@dataclass
class Study(Tabular):
    """The finished points of a comparison. Shows its table when printed, in a terminal or a notebook.

    Attributes:
        title: Heads the table and the picture.
        precisions: In the order of the table's rows.
        settings: What all points share, as JSON values.
        plan: How each product is computed, in words.
        results: One object per finished point; see the page "A study that can be interrupted".
        failures: What went wrong, by point.
        accumulations: The digest of the order of every sum, by name; the same in every precision, but that products
            of 8 bits add twice as many in a group.
        trainings: The digest of each precision's `Training`.
        executions: Where the points were trained, in words; in a folder one may go on elsewhere, to the same bits.
        records: What was seen of the points that were watched, by point.
        report: What is known of why a run went as it did, as text; the page shows it.
        unwritten: Names of files that could not be written, and why; no point is lost by that.
    """

    title: str
    precisions: tuple[str, ...]
    settings: Mapping[str, Any]
    plan: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    accumulations: Mapping[str, str] = field(default_factory=dict)
    trainings: Mapping[str, str] = field(default_factory=dict)
    executions: tuple[str, ...] = ()
    records: dict[str, Record] = field(default_factory=dict)
    report: str = ""
    unwritten: dict[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        """Mean and spread over seeds, one row per precision."""
        return table(
            summarise(self.results, self.precisions), self.title, self.executions,
            differences(self.results, self.precisions),
        )  # fmt: skip

    def rows(self) -> list[Row]:
        """A row for each finished point, without its curve: precision after precision, as given, seed by seed."""
        return [row(result) for result in self._in_order()]

    def curves(self) -> list[Row]:
        """A row for each step of each finished point, with its loss; in the order of `rows`."""
        return [each for result in self._in_order() for each in curve_rows(result)]

    def _in_order(self) -> list[dict[str, Any]]:
        """The results in the order of the call: workers finish in any."""
        place = {name: number for number, name in enumerate(self.precisions)}
        return sorted(self.results, key=lambda each: (place[each["precision"]], int(each["seed"])))

    def plot(self) -> Picture:
        """The loss curves and measures as a picture (needs matplotlib)."""
        return plot(self.results, self.precisions, self.title)

    def page(self) -> str:
        """Curves, table, plan and what was watched as one page of HTML, which needs no other file."""
        how = {**self.settings, **self.settings.get("training", {}), "trained on": "; ".join(self.executions)}
        how.pop("training", None)
        return study_page(
            self.title, self.table(), self.results, self.precisions, how, self.plan, self.records, self.report
        )

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes results.jsonl, manifest.json, table.txt, plan.txt, convergence.png and page.html; gives the folder.

        What was watched of a point is written as `Record.save` does, into a file named after it.

        Args:
            folder: Made if it is not there; one that holds this very study takes what it lacks.
            force: Where the folder holds another study, leave it and write to one beside it, NAME-2 and so on.

        Raises:
            ValueError: the folder, or a file there, cannot be written, or holds other results.
            OtherStudy: it holds another study: other settings or orders of sums, or another version of lowprec.
        """
        with open_store(folder, self.settings, self.accumulations, self.trainings, force=force) as store:
            held, made = ({Point.of(each): each for each in some} for some in (store.results(), self.results))
            for point in made:
                if point in held and not agree(made[point], held[point]):
                    raise ValueError(
                        f"{store.folder} holds another result of {point} (another loss or data): "
                        "choose another folder or remove that one"
                    )
            for name, record in self.records.items():
                file = point_file(store.folder, "watch", name)
                record.save(file)
                # Before the results, as a run does: after a kill no finished point has files without a checksum.
                store.keep([file])
            # Only where points are added: an Execution that trained nothing of the folder is not said.
            if made.keys() - held.keys():
                store.trained_by(*self.executions)
            for point, result in made.items():
                if point not in held:
                    store.append(result)
            if unwritten := self.write(store):
                told = "; ".join(f"{name}: {why}" for name, why in unwritten.items())
                raise ValueError(f"{store.folder}: cannot write {told}")
            return store.folder

    def write(self, store: Store) -> dict[str, str]:
        """Writes the table, the plan, the picture (of at most 16 precisions) and the page beside the results.

        Returns:
            The names of those that could not be written, each with the reason.
        """
        texts = {"table.txt": f"{self.table()}\n", "plan.txt": self.plan, "page.html": self.page()}
        unwritten = store.write_all(texts)
        if len(self.precisions) > MOST_DRAWN:
            return unwritten
        try:
            with replacing(store.folder / "convergence.png") as draft:
                self.plot().save(draft)
        except OSError as error:
            unwritten["convergence.png"] = refusal_in_words(error)
        # matplotlib is an extra: a study without it has its results and table.
        except ImportError as error:
            unwritten["convergence.png"] = str(error)
        return unwritten

    def listen(self, event: Event) -> None:
        """Takes up a finished or failed point."""
        if event.kind == "done":
            self.results.append(event.payload)
            # A Record is no JSON value: it must not stay in what is written as a line.
            if (record := event.payload.pop(RECORD, None)) is not None:
                self.records[str(event.item)] = record
        elif event.kind == "failed":
            self.failures[str(event.item)] = event.payload["error"]

    def __str__(self) -> str:
        failures = [f"{point} failed: {error}" for point, error in self.failures.items()]
        return "\n".join([str(self.table()) if self.results or not failures else self._nothing(), *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        failures = "".join(f"<p>{html.escape(f'{point} failed: {e}')}</p>" for point, e in self.failures.items())
        if self.failures and not self.results:
            return f"<p>{html.escape(self._nothing())}</p>{failures}"
        return self.table()._repr_html_() + failures

    def _nothing(self) -> str:
        # a table of no rows would look like one of nothing to say
        return f"{self.title}: no point was finished, all {len(self.failures)} failed"
