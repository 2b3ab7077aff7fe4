"""The figures of the synthetic study: the preprint's Figures 3, 4 and 5."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

Found = dict[int, Any]
"""As of `selffl_synthetic.study`."""

TITLES = {1: "case 1 (σ0² = 0.001, N 10–20)", 2: "case 2 (σ0² = 1, N 10–200)"}
MEASURES = {"global": "|error| of the server's model", "personal": "|error| of personal models"}
ORACLES = {
    "personal": {
        "local": "local",
        "global": "global θ^(G)",
        "paper": "paper's θ^(FL)",
        "exact": "exact posterior",
    },
    "global": {"θ_0 by global": "global θ^(G)"},
}

# Colour says which algorithm, the line what it knows of the variances.
LINES: dict[str, dict[str, Any]] = {
    "FedAvg": {"color": "#7f7f7f", "marker": "o", "lw": 3.5},  # Ditto's global model is FedAvg's, on top of it
    "Ditto, λ = 1": {"color": "#2ca02c", "marker": "v"},
    "pFedMe": {"color": "#9467bd", "marker": "^"},
    "Per-FedAvg": {"color": "#ff7f0e", "marker": "D"},
    "Self-FL paper, online": {"color": "#d62728", "marker": "s"},
    "Self-FL exact, online": {"color": "#1f77b4", "marker": "s"},
    "Self-FL paper, known σ²": {"color": "#d62728", "marker": "s", "ls": "--", "mfc": "white"},
    "Self-FL exact, known σ²": {"color": "#1f77b4", "marker": "s", "ls": "--", "mfc": "white"},
}
FIGURE_5: dict[str, dict[str, Any]] = {
    f"{name}, {variances}": {"color": color, "marker": marker, **style}
    for name, color, marker in (("Self-FL paper", "#d62728", "s"), ("Algorithm 2", "#17becf", "P"))
    for variances, style in (
        ("online", {}), ("known σ²", {"ls": "--", "mfc": "white"}), ("bootstrap", {"ls": ":", "mfc": "white"}),
    )
}  # fmt: skip
ORACLE_STYLES = {"local": ":", "global": "-.", "θ_0 by global": "-.", "paper": (0, (5, 1)), "exact": "-"}


def draw(found: Found) -> dict[str, tuple[Figure, str]]:
    """Figures 3 and 4 (error against C), their course over the rounds, and Figure 5 (Algorithms 1 and 2)."""
    drawn = {}
    for case, name in ((1, "figure3"), (2, "figure4")):
        against = f"Figure {case + 2}: errors after the last round against the activity rate, {TITLES[case]}."
        course = f"Errors over the rounds, {TITLES[case]}."
        drawn[name] = (_against_activity({case: found[case]}, LINES), against)
        drawn[f"{name}-rounds"] = (_over_rounds(found[case], TITLES[case]), course)
    drawn["figure5"] = (_against_activity(found, FIGURE_5), "Figure 5: Algorithms 1 and 2, against the activity rate.")
    return drawn


def _against_activity(found: Found, lines: dict[str, dict[str, Any]]) -> Figure:
    """Panels: cases down, global and personal across."""
    figure = Figure(figsize=(10, 1 + 3.4 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, squeeze=False)
    for row, (case, results) in zip(panels, found.items(), strict=True):
        for axes, (measure, meaning) in zip(row, MEASURES.items(), strict=True):
            for name, style in lines.items():
                by_activity = results["errors"][name]
                points = np.stack([by[measure][:, -1] for by in by_activity.values()], axis=1)
                _line(axes, list(by_activity), points, name, {"ms": 5, **style})
            _oracle_lines(axes, results, measure)
            axes.set(xlabel="activity rate C", ylabel=meaning, yscale="log", xticks=list(by_activity))
            axes.set_title(TITLES[case], fontsize=9)
    return _finished(figure, panels)


def _over_rounds(results: dict[str, Any], title: str) -> Figure:
    """Panels: global and personal down, activity rates across."""
    activities = list(next(iter(results["errors"].values())))
    figure = Figure(figsize=(15, 7), layout="constrained")
    panels = figure.subplots(2, len(activities), sharex=True, sharey="row", squeeze=False)
    for row, (measure, meaning) in zip(panels, MEASURES.items(), strict=True):
        for axes, activity in zip(row, activities, strict=True):
            for name, style in LINES.items():
                values = results["errors"][name][activity][measure]
                rounds = np.arange(1, values.shape[1] + 1)
                _line(axes, rounds, values, name, {**style, "ms": 4, "markevery": max(1, len(rounds) // 6)})
            _oracle_lines(axes, results, measure)
            axes.set(yscale="log")
        row[0].set_ylabel(meaning)
    for axes, activity in zip(panels[0], activities, strict=True):
        axes.set_title(f"C = {activity:g}", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("round")
    figure.suptitle(title, fontsize=11)
    return _finished(figure, panels)


def _line(axes: Axes, x: Any, values: Any, label: str, style: dict[str, Any]) -> None:
    mean, error = values
    axes.plot(x, mean, label=label, **{"lw": 1.4, **style})
    axes.fill_between(x, np.maximum(mean - error, mean / 10), mean + error, color=style["color"], alpha=0.2, lw=0)


def _oracle_lines(axes: Axes, results: dict[str, Any], measure: str) -> None:
    for name, label in ORACLES[measure].items():
        value = results["oracles"][name][0]
        axes.axhline(value, color="black", lw=0.9, ls=ORACLE_STYLES[name], label=f"oracle: {label}", zorder=0)


def _finished(figure: Figure, panels: Any) -> Figure:
    """One legend for all panels: the last has the most lines."""
    for axes in panels.flat:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.25, lw=0.4)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels.flat[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    return figure
