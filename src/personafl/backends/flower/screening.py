"""What the server does not take from a site: updates that would break the aggregate, measures that cannot be.

One site should not be able to end a run for all, or to make a table say anything it likes. A wrong model of a usual
length goes through: that is for `[robust]`, see `training/robust.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms import Algorithm, Sent
from personafl.errors import DataError
from personafl.kernels.task import Task
from personafl.states import State
from personafl.training.clients import LONGEST
from personafl.training.evaluation import ClientIndex

MOST_LOSS = float(torch.finfo(torch.float32).max)
LEAST = 3
"""Answers that it takes to have a median that one of them does not make."""


def too_long(up: State) -> str | None:
    """Why an update cannot be taken, whatever the others send; None where it can."""
    longest = max((_norm(value) for value in up.values() if value.is_floating_point()), default=0.0)
    return f"its update has the length {longest:.3g}, longer than any model" if longest > LONGEST else None


def too_far(algorithm: Algorithm, sent: Mapping[int, State], ups: Mapping[int, State], factor: float) -> dict[int, str]:
    """Whose update is `factor` times as long as the median of the round's updates, and the reason.

    Parameters
    ----------
    sent, ups
        What each client was sent, and what came back. An update is the difference of the two, where the algorithm's
        uplink says what an answer is relative to.
    factor
        0 for no limit.
    """
    if len(ups) < LEAST or not factor:
        return {}
    against = {name: how.relative_to or "" for name, how in algorithm.uplink.items()}
    found: dict[int, str] = {}
    for name in next(iter(ups.values())):
        norms = {i: _norm(up[name], sent[i].get(against[name])) for i, up in ups.items() if up[name].dim()}
        usual = float(np.median(list(norms.values()))) if norms else 0.0
        for i, norm in norms.items():
            if usual > 0 and norm > factor * usual:
                found[i] = (
                    f"its update is {norm / usual:.3g} times as long as the median of this round, "
                    f"federation.max_norm_factor is {factor:g}"
                )
    return found


def rows_of(sent: Sent, ids: Mapping[int, int]) -> dict[int, State]:
    """What each client was sent; `ids` says which row of it."""
    return {i: {**sent.shared, **{name: value[k] for name, value in sent.each.items()}} for i, k in ids.items()}


def check_measures(columns: State, client_index: ClientIndex, i: int, task: Task, has_common: bool) -> None:
    """Raise a DataError where a client's measures are none that its numbers of samples allow.

    Parameters
    ----------
    has_common
        Whether there is a global model; without one its measures are not numbers.
    """
    sums = ("loss", *task.kind.columns)
    measured = {f"{who}_{tag}{name}": (who, tag, name) for who in ("personal", "global")
                for tag in ("", "val_", "held_") for name in sums}  # fmt: skip
    sizes = {"": int(client_index.sizes["test"][i]), "val_": int(client_index.sizes["val"][i])}
    held = float(columns["n_held"][0]) if "n_held" in columns else 0.0
    if not 0 <= held <= sizes["val_"]:
        raise DataError(f"n_held is {held:g}, expected 0 to {sizes['val_']}")
    sizes["held_"] = int(held)
    for column, value in ((column, float(values[0])) for column, values in columns.items()):
        if column not in measured:
            # Not a number is what algorithms report that do not know yet, and ε without noise is infinite.
            if np.isinf(value) and column != "epsilon":
                raise DataError(f"{column} is {value:g}, expected a number")
            continue
        who, tag, name = measured[column]
        if np.isnan(value) and ((who == "global" and not has_common) or name not in ("loss", "correct")):
            continue  # there is no such model, or a metric has no value, such as an AUC of one class
        low, high = _range(name, sizes[tag], task, client_index)
        if not low <= value <= high:
            raise DataError(f"{column} is {value:g}, expected {low:g} to {high:g}")


def _range(name: str, n: int, task: Task, client_index: ClientIndex) -> tuple[float, float]:
    """What a sum over n samples, or the value of a metric, can be."""
    if name == "correct":
        return 0, n
    if name == "loss":
        return (-n if task.kind.loss_name == "custom" else 0) * MOST_LOSS, n * MOST_LOSS
    metric = next(metric for metric in task.kind.measures if metric.name == name)
    return max(metric.low, -MOST_LOSS), min(metric.high, MOST_LOSS)


def _norm(value: Tensor, base: Tensor | None = None) -> float:
    """The length of a tensor, or of its difference from another of its shape: in double, which holds any of them."""
    exact = value.double()
    if base is not None and base.shape == value.shape:
        exact = exact - base.double()
    return float(torch.linalg.vector_norm(exact))
