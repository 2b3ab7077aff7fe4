"""`study`: make what is missing of the runs, then the picture, the table and the page."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from personafl.algorithms import ALGORITHMS
from personafl.errors import ConfigError, DataError
from personafl.files import make_folder, write_text
from personafl.registry import require_known_name
from personafl.study.processes import Processes
from personafl_papers.methods.federations import FEDERATIONS
from personafl_papers.methods.findings import Findings
from personafl_papers.methods.outcomes import outcomes
from personafl_papers.methods.page import page
from personafl_papers.methods.runs import RunFile, check_grids, federation_of, make_federation
from personafl_papers.methods.sizes import Size

log = logging.getLogger("personafl")

RUNS, TABLE, PAGE, PICTURE = "runs.jsonl", "results.csv", "methods-study.md", "methods-study"


@dataclass(frozen=True)
class Asked:
    """What the study is asked for.

    Attributes
    ----------
    methods, federations
        By name; () for all. A federation that is not named is left out where its data is not here.
    redo
        Methods whose runs are made again.
    seed
        The first seed.
    command
        What the page says it was made by.
    """

    size: Size
    methods: tuple[str, ...] = ()
    federations: tuple[str, ...] = ()
    redo: tuple[str, ...] = ()
    seed: int = 0
    command: str = "personafl study"

    def __post_init__(self) -> None:
        for method in (*self.methods, *self.redo):
            require_known_name("method", method, list(ALGORITHMS))
        for federation in self.federations:
            require_known_name("federation", federation, list(FEDERATIONS))

    @property
    def all_methods(self) -> tuple[str, ...]:
        return self.methods or tuple(ALGORITHMS.usable()[0])


def study(
    asked: Asked, folder: Path, processes: Processes, tell: Callable[[str], None] = lambda line: None
) -> Findings:
    """Make what is missing, federation after federation; started again after an interruption, it goes on."""
    check_grids(asked.all_methods)
    make_folder(folder)
    file = RunFile(folder / RUNS)
    file.forget(asked.redo)
    clients, left_out = _clients(asked)
    for federation in clients:
        make_federation(federation, asked.all_methods, asked.size, asked.seed, file, processes, tell)
    found = outcomes(file, list(clients), asked.all_methods, asked.size, asked.seed)
    return Findings(asked.size, found, asked.command, clients, left_out)


def write(found: Findings, folder: Path, page_file: Path | None = None) -> Path | None:
    """Write results.csv, and the page with its picture, elsewhere where a file for it is named; where the page is.

    Where there is nothing to rank, with fewer than three methods or one federation, there is no page.
    """
    from personafl_papers.methods.picture import picture, write_picture  # matplotlib takes a second to import

    write_text(folder / TABLE, table(found))
    if len(found.ranked) < 3 or len(found.outcomes) < 2:
        return None
    drawn = picture(found.ranked, [*found.ranking.means], found.ranking.critical_difference)
    at = page_file or folder / PAGE
    images = at.parent / "images"
    make_folder(images)
    for kind in ("svg", "png") if page_file is None else ("svg",):
        write_picture(drawn, images / f"{PICTURE}.{kind}")
    write_text(at, page(found, f"images/{PICTURE}.svg"))
    return at


def table(found: Findings) -> str:
    """A line for each method on each federation, as CSV."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(
        ["federation", "method", "status", "accuracy", "sd", "by_seed", "global_accuracy", "worse_off", "gradients",
         "seconds", "chosen", "why"]
    )  # fmt: skip
    for federation, of in found.outcomes.items():
        for method, o in of.items():
            shared = sum(o.global_accuracies) / len(o.global_accuracies) if o.global_accuracies else None
            numbers = [_short(o.accuracy), _short(o.spread), " ".join(map(_short, o.accuracies)), _short(shared)]
            costs = [_short(o.worse_off), _short(o.gradients, 1), _short(o.seconds, 2)]
            rows.writerow([federation, method, o.status, *numbers, *costs, json.dumps(o.settings), o.why])
    return out.getvalue()


def _short(value: float | None, digits: int = 6) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def _clients(asked: Asked) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """How many clients and samples each federation has, and which federations cannot be made, and why."""
    clients, left_out = {}, {}
    for name in asked.federations or FEDERATIONS:
        try:
            made = federation_of(name, asked.size, asked.seed)
        except DataError as error:
            if asked.federations:
                raise
            log.warning("%s is left out: %s", name, error)
            left_out[name] = str(error)
            continue
        samples = made.sizes("train")
        clients[name] = f"{len(made)}, with {samples.min()} to {samples.max()} training samples"
    if not clients:
        raise ConfigError("no federation of the study can be made: docs/data.md says what to put where")
    return clients, left_out


def names(text: str | None) -> tuple[str, ...]:
    """Names that stand in one word, with commas between them.

    >>> names("fedavg, ditto"), names(None)
    (('fedavg', 'ditto'), ())
    """
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))
