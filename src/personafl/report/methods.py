"""What some runs tell besides: Self-FL's uncertainty, FedAMP's collaboration, PersFL's teachers, DET curves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from personafl import metrics
from personafl.report.numbers import rounded
from personafl.runs.run import Run
from personafl.storage.reading import open_tensors
from personafl.study.differences import Floats
from personafl.study.values import floats

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
MOST_BLOCKS = 100
"""Rows of a collaboration matrix; more clients share them."""
MOST_CLIENTS = 20_000
"""Beyond it the matrix itself would not fit into memory comfortably."""


def uncertainty(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Self-FL: quantiles over the clients of all seeds of σ², the number of local steps and GAIN, round after round."""
    tables = [run.folder.clients() for run in runs]
    if not all({"sigma2", "gain", "steps"} <= set(table.column_names) for table in tables):
        return None
    rounds = sorted({r for table in tables for r in pc.unique(table.column("round")).to_pylist()})
    names = {"sigma2": "sigma2", "steps": "early_steps", "gain": "gain"}
    out: dict[str, Any] = {"rounds": rounds, "quantiles": list(QUANTILES)}
    for name, better in names.items():
        column = better if all(better in table.column_names for table in tables) else name
        lines = []
        for r in rounds:
            values = np.concatenate([floats(t.filter(pc.equal(t.column("round"), r)), column) for t in tables])
            known = values[np.isfinite(values)]
            lines.append(rounded(np.quantile(known, QUANTILES)) if len(known) else [None] * len(QUANTILES))
        out[name] = lines
    return out


def collaboration(run: Run, order: tuple[NDArray[np.int64], str]) -> dict[str, Any] | None:
    """FedAMP: the share that each client (row) takes of every other one's model (column), at the last evaluation.

    Clients of a block share a row and a column: a cell is what a client of the row takes, on average, from all clients
    of the column together. What a client takes of its own model is apart: it would outshine the rest.
    """
    files = sorted(
        p for p in (run.path / "evaluations").glob("round-*.safetensors") if re.fullmatch(r"round-\d+", p.stem)
    )
    clients, by = order
    if not files or len(clients) > MOST_CLIENTS:
        return None
    with open_tensors(files[-1], "np") as file:
        if "weights" not in file.keys() or file.get_slice("weights").get_shape() != [len(clients)] * 2:  # noqa: SIM118
            return None
        weights: Floats = np.asarray(file.get_tensor("weights"), np.float64)
    own = np.diag(weights).copy()
    np.fill_diagonal(weights, 0.0)
    blocks = np.array_split(clients, min(len(clients), MOST_BLOCKS))
    starts = np.cumsum([0, *(len(block) for block in blocks[:-1])])
    sums = np.add.reduceat(np.add.reduceat(weights[np.ix_(clients, clients)], starts, 0), starts, 1)
    sizes = np.array([len(block) for block in blocks])
    names = run.clients().column("client").to_pylist()
    groups = run.clients().column("group").to_pylist() if by == "group" else None
    return {
        "round": int(files[-1].stem[6:]),
        "by": by,
        "each": int(sizes.max()),
        "clients": [str(names[b[0]]) + (f" to {names[b[-1]]}" if len(b) > 1 else "") for b in blocks],
        "groups": [str(groups[b[0]]) for b in blocks] if groups else None,
        "own": rounded([own[block].mean() for block in blocks], 3),
        "weights": [rounded(row, 3) for row in sums / sizes[:, None]],
    }


def distillation(runs: Sequence[Run]) -> dict[str, Any] | None:
    """PersFL: which rounds the teachers are from, and how often each temperature and imitation was chosen."""
    tables = [run.clients() for run in runs]
    if not all({"teacher_round", "imitation", "temperature"} <= set(table.column_names) for table in tables):
        return None
    teacher, imitation, temperature = (
        np.concatenate([floats(table, name) for table in tables])
        for name in ("teacher_round", "imitation", "temperature")
    )
    settings = [run.manifest["algorithm"] for run in runs]
    chosen = np.isfinite(imitation) & np.isfinite(temperature)
    lams = sorted({float(v) for s in settings for v in s.get("imitations", ())} | set(imitation[chosen].tolist()))
    temps = sorted({float(v) for s in settings for v in s.get("temperatures", ())} | set(temperature[chosen].tolist()))
    counts = [[int((np.isclose(imitation, lam) & np.isclose(temperature, t)).sum()) for lam in lams] for t in temps]
    rounds, clients = np.unique(teacher[np.isfinite(teacher) & (teacher >= 0)], return_counts=True)
    last = max(int(run.rounds()[-1]["round"]) for run in runs)
    return {
        "rounds": rounds.astype(int).tolist(), "clients": clients.tolist(), "last": last,
        "never": int((teacher < 0).sum()), "imitations": lams, "temperatures": temps, "chosen": counts,
        "undecided": int((~chosen).sum()),
    }  # fmt: skip


def detection(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Two classes: false alarms at given false rejections, over all test samples; mean, lowest and highest seed."""
    out: dict[str, Any] = {}
    for who in ("personal", "global"):
        found = [curve for run in runs if (curve := _det(run, who)) is not None]
        if not found:
            continue
        grid = ndtr(np.linspace(ndtri(0.0005), ndtri(0.9), 150))
        alarms = np.array([[metrics.false_alarm_at(curve, float(fr)) for fr in grid] for curve in found])
        rates = [metrics.equal_error_rate(curve) for curve in found]
        out[who] = {
            "false_rejection": rounded(grid), "mean": rounded(alarms.mean(0)), "low": rounded(alarms.min(0)),
            "high": rounded(alarms.max(0)), "equal_error_rate": rounded([np.mean(rates)])[0], "seeds": len(found),
        }  # fmt: skip
    return out or None


def _det(run: Run, who: str) -> metrics.DetCurve | None:
    table = run.predictions()
    if table is None or f"{who}_score" not in table.column_names or table.column(f"{who}_score").null_count:
        return None
    scores, positive = floats(table, f"{who}_score"), floats(table, "label") == 1
    if not np.isfinite(scores).all() or positive.all() or not positive.any():
        return None
    return metrics.det_curve(scores, positive)
