"""Who is better, and is it shown: from what models do for clients to differences and a winner.

Only arrays here, no files. docs/significance.md says what is tested, on whom, and how wrong it can be. In short:

- The test is on the quantity that ranks (accuracy over all samples, RMSE, loss, …), one-sided, by swapping two methods'
  results client by client; what a client got with several seeds is swapped together, so that it is one pair.
- Any of the m models might have come out best, so p is multiplied by m, and corrected by Holm over the others: the
  chance that any model is wrongly called worse than the best is at most 5%, and so is that of a wrong winner.
- With several seeds a difference also has to go the same way in each of them.
- A winner is a model that is shown to be better than every other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from personafl import metrics

Floats = NDArray[np.float64]
Model = Literal["personal", "global"]

LEVEL = 0.05


@dataclass(frozen=True)
class Row:
    """A model of a method, as tables name it: `fedavg, global model`."""

    method: str
    model: Model = "personal"
    label: str = ""

    @property
    def key(self) -> str:
        """What the row is called in files: the method, or "method (global)"."""
        return self.method if self.model == "personal" else f"{self.method} (global)"

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.label or self.key


@dataclass(frozen=True)
class Outcome:
    """What one run's model does for the clients after the last round.

    Attributes
    ----------
    clients
        Their ids; runs on the same `data` have the same, in the same order.
    n, points
        Test samples, and what is summed over clients to rank: correct answers, −n · loss, −n · RMSE², …; NaN without.
    columns
        The numbers of `study.columns` that are known.
    qoi
        Each client's improvement over the better of training alone and FedAvg's global model, where they are known.
    """

    clients: Sequence[str]
    n: Floats
    points: Floats
    data: str
    columns: Mapping[str, float]
    qoi: Floats | None = None


Outcomes = Mapping[str, Mapping[int, Outcome]]
"""By row and seed."""
Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By row, column and seed."""


@dataclass(frozen=True)
class Difference:
    """A model against the one that ranks first, over paired clients.

    Attributes
    ----------
    mean_difference
        This one minus the best, in the quantity that ranks, mean over the seeds that both have.
    p, p_holm
        One-sided, that the best is better; and corrected for the choice of the best and for the other models.
    pairs, ahead, behind
        Clients that both were measured on, and for how many of them this one is better and worse than the best.
    seeds, seeds_behind
        Seeds that both have, and in how many of them this one is behind.
    """

    method: str
    against: str
    mean_difference: float
    p: float
    p_holm: float
    pairs: int
    ahead: int
    behind: int
    seeds: int
    seeds_behind: int

    @property
    def significant(self) -> bool:
        """Shown to be worse than the best."""
        return bool(self.p_holm <= LEVEL) and self.seeds_behind == self.seeds


def first_of(values: Values, key: str, sign: int) -> str:
    """The row with the best mean over seeds, of equal ones the first; `sign` says which way is better."""
    return max(values, key=lambda m: np.nan_to_num(sign * mean(values[m][key]), nan=-np.inf))


def differences(outcomes: Outcomes, best: str) -> list[Difference]:
    """Each row against the best, over the clients that both have, mean over seeds first."""
    found = [(row, pair) for row in outcomes if row != best and (pair := _paired(outcomes[best], outcomes[row]))]
    p = [metrics.sign_flip(pair.clients) for _, pair in found]
    corrected = np.minimum(1.0, len(outcomes) * metrics.holm(p))
    return [
        Difference(
            row, best, -float(np.mean(pair.seeds)), raw, float(fair), len(pair.clients), int((pair.clients < 0).sum()),
            int((pair.clients > 0).sum()), len(pair.seeds), sum(d > 0 for d in pair.seeds),
        )
        for (row, pair), raw, fair in zip(found, p, corrected, strict=True)
    ]  # fmt: skip


def winner_of(rows: Sequence[str], best: str, found: Sequence[Difference]) -> str | None:
    """The best, if it is shown to be better than every other row; nobody otherwise."""
    worse = {d.method for d in found if d.significant}
    return best if len(rows) > 1 and worse == set(rows) - {best} else None


def fewest_clients(rows: int) -> int:
    """With how many clients the first of so many rows can be shown to be better than another at all.

    >>> fewest_clients(2), fewest_clients(6)
    (6, 10)
    """
    return int(np.ceil(np.log2(rows * (rows - 1) / LEVEL)))


def mean(values: Sequence[float]) -> float:
    """Over the seeds that have a value."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else np.nan


def listed(names: Sequence[str]) -> str:
    """Names in a sentence; those of models may have a comma in them.

    >>> listed(["a", "b", "c"]), listed(["a", "b, global model"])
    ('a, b and c', 'a; b, global model')
    """
    if any("," in name for name in names):
        return "; ".join(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class _Pair:
    clients: Floats
    """How much better the first is for each client, in shares of all samples, summed over seeds and divided by them."""
    seeds: list[float]


def _paired(first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> _Pair | None:
    """Two rows on the same clients: seeds that both have, on the same data."""
    parts: list[tuple[NDArray[np.str_], Floats]] = []
    for seed in shared_seeds(first, second):
        a, b = first[seed], second[seed]
        difference = a.points - b.points
        known = np.isfinite(difference) & (a.n == b.n)
        if known.any():
            parts.append((np.asarray(a.clients)[known], difference[known] / a.n[known].sum()))
    if not parts:
        return None
    seeds = [float(part.sum()) for _, part in parts]
    if len(parts) == 1:
        return _Pair(parts[0][1], seeds)
    _, who = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
    return _Pair(np.bincount(who, np.concatenate([part for _, part in parts])) / len(parts), seeds)


def shared_seeds(first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> list[int]:
    """Seeds in which both were measured on the same clients and data."""
    both = [seed for seed in first if seed in second and first[seed].data == second[seed].data]
    return [seed for seed in both if list(first[seed].clients) == list(second[seed].clients)]
