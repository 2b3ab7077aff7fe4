"""PersFL's users one by one: their accuracies, their improvement (Figure 6.8), and the (λ, T) that they tried."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from personafl.metrics import quantum_of_improvement
from personafl.palette import LIGHT
from personafl.report.figures import STYLE
from personafl_papers.tables.claims import Number
from personafl_papers.tables.measures import Runs
from personafl_papers.tables.persfl_measures import FEDAVG, users_of
from personafl_papers.tables.table import number

_POINT = re.compile(r"grid_([0-9.e+-]+)_([0-9.e+-]+)")
QOI_EDGES = np.linspace(-100, 100, 41)


def by_user(runs: Runs, rows: Mapping[str, str]) -> dict[str, dict[str, Number]]:
    """The accuracy of each user with each method, over seeds, in percent (Tables 6.2 to 6.4)."""
    out: dict[str, dict[str, Number]] = {}
    for method, row in rows.items():
        if runs.get(method):
            values = np.stack([users_of(run) for run in runs[method].values()])
            for user, of_user in enumerate(values.T, 1):
                out.setdefault(f"User {user}", {})[row] = number(of_user.tolist(), 100)
    return out


def improvements(runs: Runs, rows: Mapping[str, str]) -> dict[str, Any]:
    """How many users have which QoI, over FedAvg and training alone, in percentage points; of all seeds."""
    counts = {}
    for method, row in rows.items():
        seeds = [s for s in runs.get(method, {}) if s in runs.get(FEDAVG, {}) and s in runs.get("separate", {})]
        if seeds and method not in (FEDAVG, "separate"):
            found = [
                quantum_of_improvement(*(users_of(runs[m][seed]) for m in (method, FEDAVG, "separate")))
                for seed in seeds
            ]
            counts[row] = np.histogram(100 * np.concatenate(found), QOI_EDGES)[0].tolist()
    return {"edges": QOI_EDGES.tolist(), "counts": counts}


def by_grid(runs: Runs, method: str = "persfl") -> dict[str, dict[str, Number]]:
    """The validation accuracy of students by λ and T, mean over users, in percent (Figures 6.2 to 6.7 in numbers)."""
    tables = [run.clients() for run in runs.get(method, {}).values()]
    points = [found for name in tables[0].column_names if (found := _POINT.fullmatch(name))] if tables else []
    out: dict[str, dict[str, Number]] = {}
    for point in points:
        means = [float(np.nanmean(table.column(point[0]).to_numpy(zero_copy_only=False))) for table in tables]
        out.setdefault(f"T = {point[2]}", {})[f"λ = {point[1]}"] = number(means, 100)
    return out


def tried(runs: Runs, method: str = "persfl") -> list[dict[str, list[list[float]]]]:
    """For each user by T (as text): pairs of λ and the validation accuracy in percent, mean over seeds."""
    tables = [run.clients() for run in runs.get(method, {}).values()]
    points = [found for name in tables[0].column_names if (found := _POINT.fullmatch(name))] if tables else []
    users: list[dict[str, list[list[float]]]] = []
    for point in points:
        values = np.stack([np.asarray(table.column(point[0]).to_numpy(zero_copy_only=False)) for table in tables])
        for user, mean in enumerate(values.mean(0)):
            if user == len(users):
                users.append({})
            users[user].setdefault(point[2], []).append([float(point[1]), float(f"{100 * mean:.5g}")])
    return users


def grid_figure(users: list[dict[str, list[list[float]]]], title: str) -> Figure:
    """A panel for each user: validation accuracy against λ, a line for each T."""
    with matplotlib.rc_context(STYLE):
        across = min(5, len(users))
        figure = Figure(figsize=(2.2 * across, 2.2 * -(-len(users) // across)), layout="constrained")
        panels = np.atleast_1d(figure.subplots(-(-len(users) // across), across, sharex=True)).ravel()
        for user, (axes, lines) in enumerate(zip(panels, users, strict=False), 1):
            for colour, (temperature, pairs) in zip(LIGHT, lines.items(), strict=False):
                axes.plot(*np.array(pairs).T, color=colour, marker=".", label=f"T = {temperature}")
            axes.set_title(f"User {user}", fontsize=8)
        panels[0].legend(fontsize=6)
        figure.supxlabel("λ", fontsize=9)
        figure.supylabel("validation accuracy, %", fontsize=9)
        figure.suptitle(title, fontsize=10)
    return figure
