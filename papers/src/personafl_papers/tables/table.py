"""What a table of a paper is: what is run, what was published, what is measured, which claims are made.

A table is one file that ends with `TABLE = Table(…)`; `selffl_table1.py` is the example to start from. Nothing here
runs anything: `runs.py` does, and `results.py` puts published and measured side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from personafl.metrics import mean_over_seeds
from personafl.runs.run import Run
from personafl.study.plan import Plan, config_recipes
from personafl_papers.tables.availability import available
from personafl_papers.tables.claims import Claim, Number, Numbers
from personafl_papers.tables.search import Axes, Searched, SearchPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Published = Mapping[str, Mapping[str, float | tuple[float, float]]]
"""Row → column → value, or value and the spread that the paper gives with it."""

WHY = ("bug", "protocol difference", "unstated choice", "the paper's implementation")
"""Where a difference can come from, in the order in which it is looked for."""

ENGINE = {"name": "stacked"}
"""A fixed one, so that it is not timed anew for every run. `processes.py` says with how many threads."""


@dataclass(frozen=True)
class Part:
    """A block of numbers of a table.

    Attributes
    ----------
    title
        What it is, such as "MNIST, 1,000 clients".
    place
        Where in the paper, such as "Table 1".
    published
        Its numbers there; rows and columns that are not published may be measured all the same.
    other_data
        Says that this is not the paper's data, and which it is: values are then shown without differences.
    spread
        What the second of two published numbers is.
    """

    title: str
    place: str
    published: Published = field(default_factory=dict)
    other_data: str = ""
    spread: str = "standard error"


@dataclass(frozen=True)
class Note:
    """Why numbers differ: which of `WHY`, what, and how we know.

    `explains` are how claims begin that do not hold because of it, where `known_by` is an experiment that shows it.
    """

    why: Literal["bug", "protocol difference", "unstated choice", "the paper's implementation"]
    what: str
    known_by: str
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What came out: numbers for the table, and whatever the figures need, in terms of JSON."""

    numbers: Numbers
    curves: dict[str, Any] = field(default_factory=dict)


@dataclass
class Found:
    """What has been run so far.

    Attributes
    ----------
    quick
        Whether the small version is asked for.
    seed
        The first seed.
    runs
        Finished runs by part, method and seed.
    searches
        What was searched and chosen on validation data, by part and method.
    tell
        Called with a line now and then.
    """

    quick: bool = False
    seed: int = 0
    runs: dict[str, dict[str, dict[int, Run]]] = field(default_factory=dict)
    searches: dict[str, dict[str, Searched]] = field(default_factory=dict)
    failures: list[tuple[str, str, int, str]] = field(default_factory=list)
    tell: Callable[[str], None] = lambda line: None

    def seeds(self, full: int, quick: int = 2) -> tuple[int, ...]:
        """So many seeds, counting up from the first."""
        return tuple(range(self.seed, self.seed + (quick if self.quick else full)))

    def chosen(self, part: str, method: str) -> dict[str, Any]:
        """What a search of an earlier stage chose for a method, such as {"algorithm.lam": 0.1}; {} if none was."""
        search = self.searches.get(part, {}).get(method)
        return dict(search.chosen) if search else {}


Stage = Callable[[Found], Sequence[tuple[str, Plan | SearchPlan]]]
"""Plans by part; the plans of one part are put together. A later stage sees what the earlier ones found."""


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper that can be run again.

    Attributes
    ----------
    about, paper
        What it shows, in one line; where it is from.
    cost
        How long the full version takes on two cores, as measured.
    data
        Sources that it needs, by the names of `availability.FINDERS`; () for data that is drawn.
    optional
        Sources that more parts need; `available` tells a stage whether they are there.
    parts
        The blocks of numbers, published ones beside those that are measured.
    stages
        What is run, one after the other.
    measure
        Turns runs into numbers.
    claims
        What the paper says of its numbers.
    figures
        Draws: name → (figure, caption), from what `measure` gave.
    notes
        Why numbers differ.
    cut
        What was made smaller than in the paper to fit the time, in words.
    """

    about: str
    paper: str
    cost: str
    parts: Mapping[str, Part]
    measure: Callable[[Found], Measured]
    data: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: Callable[[Measured], dict[str, tuple[Figure, str]]] | None = None
    notes: tuple[Note, ...] = ()
    cut: str = ""

    @property
    def missing(self) -> list[str]:
        """The data that it needs and that is not on this machine."""
        return [source for source in self.data if not available(source)]

    def listed(self) -> dict[str, str]:
        """What `personafl list tables` says of it."""
        data = ", ".join((*self.data, *(f"({source})" for source in self.optional))) or "drawn"
        lacking = ", ".join(self.missing)
        return {"about": self.about, "cost": self.cost, "data": data, "here": f"no {lacking}" if lacking else "yes"}


def planned(
    tables: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    grid: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    tune_seeds: int = 1,
) -> Plan:
    """A plan made in code.

    Parameters
    ----------
    tables
        A config without algorithm and seed; the stacked engine where it names no engine.
    methods
        What each method sets, as under `[methods.NAME]` of a config. A name that is not an algorithm needs
        `algorithm.name`. Names are parts of folder names: `fedavg-40`. Runs are shared between tables, where names
        and configs agree.
    grid
        Keys and values to search for a method on validation data, such as {"ditto": {"algorithm.lam": [0.1, 1.0]}}.
    """
    whole = {"engine": ENGINE, "methods": {name: dict(own) for name, own in methods.items()}, **tables}
    grids = {m: {key: list(values) for key, values in keys.items()} for m, keys in (grid or {}).items()}
    return Plan(config_recipes(whole), tuple(methods), tuple(seeds), grid=grids, tune_seeds=tune_seeds)


def searching(
    tables: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    axes: Mapping[str, Axes],
    budget: int,
    most: int = 0,
) -> SearchPlan:
    """A search made in code: what is as in `planned`, and for each method the axes on which it is searched.

    A score is of the last round, so trials are evaluated after that alone, unless evaluations decide when they end.
    """
    if "patience" not in tables:
        tables = {**tables, "eval_every": 0}
    own = {method: methods[method] for method in axes}
    return SearchPlan(replace(planned(tables, own, seeds), methods=()), dict(axes), budget, most)


def with_settings(own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a method sets, and settings with dotted keys besides, such as a search has chosen.

    >>> with_settings({"local": {"steps": 40}}, {"algorithm.lam": 0.1})
    {'local': {'steps': 40}, 'algorithm': {'lam': 0.1}}
    """
    out = {key: dict(value) if isinstance(value, Mapping) else value for key, value in own.items()}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        out.setdefault(table, {})[name] = value
    return out


def number(values: Sequence[float], scale: float = 1.0) -> Number:
    """A number from its values by seed; shares become percentages with `scale` 100.

    >>> number([0.5, 0.7], 100)
    Number(mean=60.0, error=10.0, count=2, values=(50.0, 70.0))
    """
    scaled = tuple(float(v) * scale for v in values)
    found = mean_over_seeds(np.array(scaled))
    mean, error, *kept = (float(f"{x:.10g}") for x in (found.mean, found.standard_error, *scaled))
    return Number(mean, error, found.seeds, tuple(kept))
