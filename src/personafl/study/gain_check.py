"""GAIN is an estimate. Here it is checked: do clients do better together than alone, and than by chance?

That is measured on validation data where clients have any, on test data otherwise. Alone is a finished run of
`separate` on the same data that lies beside the Self-FL run, as in the folder of a comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import stats

from personafl import metrics
from personafl.errors import PersonaflError
from personafl.metrics.measures import LOSS, Measure
from personafl.runs.run import Run
from personafl.study.differences import LEVEL, Floats
from personafl.study.values import floats
from personafl.tasks.base import column_of


@dataclass(frozen=True)
class Check:
    """What was measured.

    Attributes
    ----------
    split
        "validation" or "test".
    n, together, alone
        Each client's samples there, and its value of the measure with the personalized model and alone.
    measure
        What ranks models of the run: the accuracy of a classification.
    chance
        The accuracy of always giving the most frequent class; None for other measures.
    above_chance
        Whether the personalized models are shown to be better than that; None for other measures.
    helps
        1 where joining is shown to help, −1 where it is shown to harm, 0 where neither is; None without a run alone.
    work
        Gradients that a client computed together and alone, where both are known.
    """

    split: str
    n: Floats
    together: Floats
    alone: Floats | None
    measure: Measure
    chance: float | None
    above_chance: bool | None
    helps: int | None
    work: tuple[float, float] | None

    @property
    def borne_out(self) -> bool | None:
        """Whether the estimate holds where it can be measured; None where it cannot."""
        if self.above_chance is False:
            return False
        return None if self.helps is None else self.helps > 0


def check(run: Run) -> Check:
    """Measure a Self-FL run against chance, and against training alone where such a run lies beside it."""
    table = run.clients()
    split = "val" if floats(table, "n_val").sum() > 0 else "test"
    measure = _measure(run, split)
    n, together = floats(table, f"n_{split}"), _values(table, split, measure)
    other = run_alone(run)
    alone = None if other is None else _values(other.clients(), split, measure)
    chance = _chance(run) if measure.name == "accuracy" else None
    return Check(
        "validation" if split == "val" else "test",
        n,
        together,
        alone,
        measure,
        chance,
        None if chance is None else _above(n, together, chance),
        None if alone is None else _helps(n, together, alone, measure),
        None if other is None else _work(run, other),
    )


def run_alone(run: Run) -> Run | None:
    """A finished run of `separate` with the same seed and data, beside a run; rather one with the same settings."""
    found = [other for file in sorted(run.path.resolve().parent.glob("*/run.toml")) if (other := _alone(file, run))]
    settings = ("rounds", "activity", "local", "model")
    return min(found, key=lambda r: sum(r.manifest.get(k) != run.manifest.get(k) for k in settings), default=None)


def words(found: Check) -> str:
    """What was measured, and whether the estimate is borne out."""
    mine = f"with the others {_mean(found, found.together)}"
    where = f"Measured on {found.split} data of {int((found.n > 0).sum())} clients"
    if found.above_chance is False:
        guess = f"always giving the most frequent class {found.chance:.1%}"
        return f"The estimate is not borne out. {where}: {mine}, and {guess}."
    if found.alone is None:
        return (
            f"{where}: {mine}. Whether joining helps is not measured: that needs a run of `separate` on the same data "
            "beside this one, as `personafl compare` makes it."
        )
    both = f"{where}: {mine}, alone {_mean(found, found.alone)}{_unequal(found)}"
    if found.helps == 0:
        return f"The estimate is not borne out. {both}: joining is not shown to help."
    if found.helps == -1:
        return f"The estimate is not borne out. {both}: joining does not help, it harms."
    return f"{both}: joining helps."


def _alone(file: Path, run: Run) -> Run | None:
    try:
        other = Run(file.parent)
        same = other.manifest["algorithm"]["name"] == "separate" and other.manifest["seed"] == run.manifest["seed"]
        same = same and other.manifest["resolved"]["fingerprint"] == run.manifest["resolved"]["fingerprint"]
        same = same and other.complete and other.clients().column("client").equals(run.clients().column("client"))
    except (PersonaflError, OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None  # a folder that is not a run, or damaged: it says nothing about this one
    return other if same else None


def _measure(run: Run, split: str) -> Measure:
    """What ranks models of a run, or the loss where it was not measured on this data."""
    return run.primary if _column(run.primary, split) in run.clients().column_names else LOSS


def _column(measure: Measure, split: str) -> str:
    return f"{'personal_' if split == 'test' else 'personal_val_'}{column_of(measure)}"


def _values(table: pa.Table, split: str, measure: Measure) -> Floats:
    """Each client's value."""
    values = floats(table, _column(measure, split))
    return metrics.accuracies(values, floats(table, f"n_{split}")) if measure.name == "accuracy" else values


def _chance(run: Run) -> float | None:
    """How often the most frequent class is right; without predictions, the share of one of so many classes."""
    if (predictions := run.predictions()) is not None and len(predictions):
        return float(np.unique(floats(predictions, "label"), return_counts=True)[1].max() / len(predictions))
    classes = run.manifest["resolved"].get("classes")
    return 1 / classes if classes else None


def _above(n: Floats, accuracy: Floats, chance: float) -> bool | None:
    known = (n > 0) & ~np.isnan(accuracy)
    if not known.any():
        return None
    right, total = round((n * accuracy)[known].sum()), int(n[known].sum())
    return bool(stats.binomtest(right, total, chance, alternative="greater").pvalue <= LEVEL)


def _helps(n: Floats, together: Floats, alone: Floats, measure: Measure) -> int:
    gained = np.where(n > 0, measure.points(together, n) - measure.points(alone, n), np.nan)
    gained = gained[np.isfinite(gained)]
    if metrics.sign_flip(gained) <= LEVEL:
        return 1
    return -1 if metrics.sign_flip(-gained) <= LEVEL else 0


def _work(run: Run, other: Run) -> tuple[float, float] | None:
    tables = (run.clients(), other.clients())
    if not all("gradients" in table.column_names for table in tables):
        return None
    together, alone = (float(np.nanmean(floats(table, "gradients"))) for table in tables)
    return together, alone


def _unequal(found: Check) -> str:
    if found.work is None or max(found.work) <= 1.1 * min(found.work):
        return ""
    return f" (with unequal work: {found.work[0]:,.0f} gradients a client and {found.work[1]:,.0f})"


def _mean(found: Check, values: Floats) -> str:
    mean = found.measure.pooled(np.where(np.isfinite(values), values, np.nan), found.n)
    return f"{mean:.1%} right" if found.measure.name == "accuracy" else f"a {found.measure.label} of {mean:.4g}"
