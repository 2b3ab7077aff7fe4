"""What a number that models are compared by is: its name, which way is better, how it is written, how clients pool.

Metrics of tasks are `Measure`s with a way to compute them (`personafl.tasks`). A run folder keeps what is here
(`resolved.metrics` of run.toml), so that whoever reads it needs no code, also for somebody's own metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import ConfigError
from personafl.metrics.inputs import Floats, aligned

Pool = Literal["mean", "squares", "logs"]


@dataclass(frozen=True)
class Measure:
    """A number that models are compared by.

    Parameters
    ----------
    name
        As columns and files have it: `personal_rmse`.
    better
        1 where larger is better, −1 where smaller is; 0 where nobody said.
    title, unit, scale, digits
        How it is written: the value times `scale`, with so many digits after the point, and the unit.
    pool
        How clients' values become one number, a mean weighted by samples: of the values; of their `squares`, which
        makes an RMSE of all samples of clients' RMSEs; of their `logs`, which makes a perplexity of perplexities.
    low, high
        What it can be.

    Examples
    --------
    >>> rmse = Measure("rmse", -1, "RMSE", pool="squares")
    >>> rmse.pooled([1.0, 7.0, np.nan], [1, 1, 5])
    5.0
    """

    name: str
    better: int = 1
    title: str = ""
    unit: str = ""
    scale: float = 1.0
    digits: int = 4
    pool: Pool = "mean"
    low: float = -np.inf
    high: float = np.inf

    @property
    def label(self) -> str:
        """How sentences call it."""
        return self.title or self.name

    @property
    def heading(self) -> str:
        """How a table's column is called."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def worst(self) -> float:
        """The value of a model that gives no numbers."""
        return self.high if self.better < 0 else self.low

    def additive(self, values: ArrayLike) -> Floats:
        """Values as they add up over samples: themselves, their squares or their logarithms."""
        known = np.asarray(values, np.float64)
        if self.pool == "mean":
            return known
        with np.errstate(divide="ignore"):
            return np.square(known) if self.pool == "squares" else np.log(known)

    def pooled(self, values: ArrayLike, n: ArrayLike) -> float:
        """One number for all clients, weighted by samples; clients without a value are left out."""
        parts, weights = aligned(values=self.additive(values), n=n)
        measured = (weights > 0) & ~np.isnan(parts)
        if not measured.any():
            return np.nan
        mean = float((parts * weights)[measured].sum() / weights[measured].sum())
        return mean if self.pool == "mean" else mean**0.5 if self.pool == "squares" else float(np.exp(mean))

    def points(self, values: ArrayLike, n: ArrayLike) -> Floats:
        """What is summed over clients to rank models: more is better."""
        parts, weights = aligned(values=self.additive(values), n=n)
        return (self.better or 1) * weights * parts

    def write(self, value: float) -> str:
        """A value for people.

        >>> ACCURACY.write(0.8512), LOSS.write(0.25)
        ('85.12%', '0.2500')
        """
        if value is None or not np.isfinite(value):
            return "–"
        return f"{value * self.scale:.{self.digits}f}{self.unit}"

    def table(self) -> dict[str, Any]:
        """For a run folder; `read_measures` is the inverse."""
        own = asdict(Measure(**{f.name: getattr(self, f.name) for f in fields(Measure)}))
        return {key: value for key, value in own.items() if key != "name" and value != _DEFAULTS[key]}


_DEFAULTS = {f.name: f.default for f in fields(Measure)}

ACCURACY = Measure("accuracy", 1, "accuracy", "%", 100, 2, low=0.0, high=1.0)
LOSS = Measure("loss", -1, "loss")


def read_measures(tables: Any) -> tuple[Measure, ...]:
    """The measures that a run folder names, in their order; the first is the one that ranks.

    >>> read_measures({"rmse": {"better": -1, "pool": "squares"}})[0].better
    -1
    """
    if not isinstance(tables, Mapping) or not all(isinstance(own, Mapping) for own in tables.values()):
        raise ConfigError("the metrics of a run must be a table for each")
    return tuple(_read(str(name), own) for name, own in tables.items())


def _read(name: str, own: Mapping[str, Any]) -> Measure:
    kinds = {"better": int, "digits": int, "scale": float, "low": float, "high": float}
    known = {key: kinds.get(key, str)(value) for key, value in own.items() if key in _DEFAULTS}
    return Measure(name, **known)


def measures_in(manifest: Mapping[str, Any], records: Iterable[Mapping[str, Any]] = ()) -> tuple[Measure, ...]:
    """The measures of a run, from its run.toml; a run of an earlier version has the accuracy, if its records do."""
    found = manifest.get("resolved", {}).get("metrics")
    if found is None:
        return (ACCURACY,) if any("personal_accuracy" in record for record in records) else ()
    return read_measures(found)


def score_in(
    manifest: Mapping[str, Any], record: Mapping[str, Any], who: str = "personal"
) -> tuple[Measure, float] | None:
    """What a record of a round says of the measure that ranks, or else of the loss; None without an evaluation.

    >>> score_in({}, {"personal_accuracy": 0.75, "personal_loss": 0.5})[1]
    0.75
    """
    for measure in (ranking(measures_in(manifest, [record])), LOSS):
        value = record.get(f"{who}_{measure.name}")
        if value is not None:
            return measure, float(value)
    return None


def ranking(measures: tuple[Measure, ...]) -> Measure:
    """The measure that models are ranked by: the first that says which way is better, else the loss."""
    return next((measure for measure in measures if measure.better), LOSS)
