"""Why each client of a fit got its model: what its own validation samples said, and how much they counted.

A client with n validation samples has the weights w = (1 - s) π + s r, where s = n / (n + α), π are everybody's weights
and r is what its own samples say (fitting/choice.py). So w, π and s tell what moved a client, or that nothing did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 0.02
"""Smaller weights are left out: a model that counts for less is not worth its computation."""
MOVED = 0.1
"""Weights are as everybody's where less than this went from some models to others."""
SAYS = 0.2
"""Own samples say the same as everybody's where their weights differ by less than this."""
_NONE = "no validation samples of its own"


def own_shares(way: Mapping[str, Any], n_val: Sequence[int]) -> list[float] | None:
    """How much each client's own samples count against everybody's; None for ways that do not weigh them so.

    >>> own_shares({"kind": "mixture", "alpha": 30.0}, [0, 10, 30])
    [0.0, 0.25, 0.5]
    """
    alpha = way.get("alpha")
    if way.get("kind") != "mixture" or alpha is None:
        return None
    return [n / (n + alpha) if n else 0.0 for n in n_val]


def reasons(fitted: Mapping[str, Any], weights: Floats, n_val: Sequence[int]) -> list[str]:
    """Why these clients got these weights, in a few words.

    Parameters
    ----------
    fitted
        fit.json.
    weights
        Of each finalist for each of the clients, (K, F).
    n_val
        Their validation samples.

    Examples
    --------
    >>> labels = [{"label": "one model"}, {"label": "ditto"}]
    >>> fitted = {"way": {"kind": "mixture", "alpha": 10.0}, "newcomer": [0.8, 0.2], "finalists": labels}
    >>> reasons(fitted, np.array([[0.8, 0.2], [0.75, 0.25], [0.4, 0.6]]), [20, 2, 20])
    ... # doctest: +NORMALIZE_WHITESPACE
    ['as everybody: its own samples change little', 'as everybody: too few samples of its own',
     'its own samples prefer ditto']
    """
    kind, labels = fitted["way"].get("kind"), [str(model["label"]) for model in fitted["finalists"]]
    shares, usual = own_shares(fitted["way"], n_val), _usual(fitted["newcomer"])
    if kind == "one each":
        return [_of_one(labels, row, usual, n) for row, n in zip(weights, n_val, strict=True)]
    if shares is None:
        return ["as everybody: no choice by client was shown to be better"] * len(weights)
    return [_of_mixture(labels, row, usual, share) for row, share in zip(weights, shares, strict=True)]


def _usual(newcomer: Sequence[float]) -> Floats:
    """What somebody gets of whom nothing is known, without weights that are too small, as clients' are."""
    kept = np.array(newcomer, np.float64)
    kept[kept < LEAST] = 0.0
    return np.asarray(kept / max(kept.sum(), LEAST))


def _of_one(labels: Sequence[str], row: Floats, usual: Floats, n: int) -> str:
    mine = int(row.argmax())
    if mine != int(usual.argmax()):
        return f"its own samples prefer {_called(labels[mine])}"
    return f"as for a newcomer: {'its own samples do not show another to be better' if n else _NONE}"


def _of_mixture(labels: Sequence[str], row: Floats, usual: Floats, share: float) -> str:
    change = row - usual
    moved = float(np.abs(change).sum()) / 2
    if not share:
        return f"as everybody: {_NONE}"
    if moved < SAYS * share:
        return "as everybody: its own samples change little"
    if moved < MOVED:  # so that its share is below one half
        return "as everybody: too few samples of its own"
    more = int(change.argmax())
    most = more == int(row.argmax())
    called = _called(labels[more])
    return f"its own samples prefer {called}" if most else f"its own samples give more weight to {called}"


def _called(label: str) -> str:
    return {"alone": "training alone", "one model": "one model for all"}.get(label, label)


def in_words(row: Floats, labels: Sequence[str]) -> str:
    """A client's weights for people.

    >>> in_words(np.array([0.25, 0.0, 0.75]), ["alone", "one model", "ditto"])
    '75% ditto + 25% alone'
    """
    order: list[int] = sorted(np.flatnonzero(row).tolist(), key=lambda f: -row[f])
    if len(order) == 1:
        return labels[order[0]]
    return " + ".join(f"{row[f]:.0%} {labels[f]}" for f in order)
