"""What a site reports of its models when it is evaluated: little, and not as often as somebody likes.

Sums of losses of models that somebody may choose are an oracle: with enough of them a test sample can be read off. So
a site that asks for privacy reports no metrics (`SiteSettings.reports_metrics`). Any other reports them once for each
time that it trained, of the one model that it was sent, rounded; asked the same again, it repeats what it said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from torch import Tensor

from personafl.backends.flower.job import Order, fingerprint
from personafl.backends.flower.ledger import Entry
from personafl.files import disk_errors, write_text
from personafl.training.evaluation import Columns

LOSS = 0.01
"""To this the mean loss of a classification is rounded, see `loss_step`."""
DIGITS = 3
"""To so many significant digits everything else is rounded that is not a whole number."""


def why_not(entries: Sequence[Entry], run: str, round: int) -> str:
    """Why a site does not report metrics now; empty where it does."""
    mine = [entry for entry in entries if entry.run == run]
    reported = [k for k, entry in enumerate(mine) if entry.what == "metrics"]
    trained = len(mine) - len(reported)
    if len(reported) >= trained:
        return f"it trained {trained} times in this run and reported metrics {len(reported)} times: it trains first"
    same = [k for k in reported if mine[k].round == round]
    if same and all(entry.what == "metrics" for entry in mine[same[-1] :]):
        return f"it reported metrics of round {round} already, of another model"
    return ""


def loss_step(n: int) -> float:
    """To what the mean loss of n samples is rounded: a single one of them moves it by few steps.

    That is less than the mean of so few samples says of others anyway, which is about 1/√n.
    """
    return max(LOSS, 2 / max(n, 1))


def rounded(columns: Columns, sizes: Mapping[str, int], classes: bool) -> Columns:
    """What is reported in place of exact values.

    Parameters
    ----------
    sizes
        The number of samples of each split.

    Examples
    --------
    >>> exact = {"personal_loss": np.array([7.1234]), "personal_correct": np.array([9.0]), "alpha": np.array([0.51239])}
    >>> {name: float(value[0]) for name, value in rounded(exact, {"test": 10, "val": 0}, True).items()}
    {'personal_loss': 8.0, 'personal_correct': 9.0, 'alpha': 0.512}
    """
    out: Columns = {}
    for name, values in columns.items():
        if name == "epsilon" or values.dtype.kind != "f":
            out[name] = values
        elif classes and name.endswith("_loss"):
            held = int(columns["n_held"][0]) if "n_held" in columns else 0
            n = max(held if "_held_" in name else sizes["val" if "_val_" in name else "test"], 1)
            out[name] = np.round(values / n / loss_step(n)) * loss_step(n) * n
        else:
            out[name] = np.array([float(f"{v:.{DIGITS}g}") if v % 1 else v for v in values.tolist()], values.dtype)
    return out


def digest(order: Order, last: bool, common: Tensor | None, data: str) -> str:
    """What makes two orders to evaluate the same, on data with this fingerprint."""
    sent = {**order.sent.shared, **order.sent.each, **({} if common is None else {"common": common})}
    said = [
        data,
        order.job.text(),
        order.round,
        order.accepted,
        last,
        {n: fingerprint(v) for n, v in sorted(sent.items())},
    ]
    return sha256(json.dumps(said).encode()).hexdigest()


class LastReport:
    """The last metrics that a site reported in a run, on its disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "evaluated.json"

    def recall(self, asked: str) -> Columns | None:
        """What was answered to the same order, where it was the last one."""
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            if said["order"] != asked:
                return None
            return {name: np.array([value], kind) for name, (kind, value) in said["columns"].items()}
        except (OSError, ValueError, TypeError, KeyError):  # none, or a damaged one: it is not repeated
            return None

    def keep(self, asked: str, columns: Columns) -> None:
        """Write down what is answered to an order, before it leaves."""
        with disk_errors(self._path.parent, "creating"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        said = {name: (str(values.dtype), values.tolist()[0]) for name, values in columns.items()}
        write_text(self._path, json.dumps({"order": asked, "columns": said}))
