"""What the tables' figures have in common: curves over rounds with standard errors, in the report's colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from personafl.palette import LIGHT, MARKERS
from personafl.report.figures import STYLE


def curves(panels: Mapping[str, Mapping[str, Mapping[str, Any]]], label: str) -> Figure:
    """A panel for each title, and in it a line for each row, as `measures.over_rounds` gives them."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8 * len(panels), 3.6), layout="constrained")
        styles = line_styles(row for rows in panels.values() for row in rows)
        for axes, (title, rows) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
            for row, line in rows.items():
                rounds, mean, error = (np.array(line[key], np.float64) for key in ("rounds", "mean", "error"))
                axes.plot(rounds, mean, label=row, markevery=max(1, len(rounds) // 8), **styles[row])
                axes.fill_between(rounds, mean - error, mean + error, color=styles[row]["color"], alpha=0.13, lw=0)
            axes.set(xlabel="round", title=title)
        figure.axes[0].set_ylabel(label)
        figure.axes[-1].legend(fontsize=7)
    return figure


def histograms(panels: Mapping[str, Mapping[str, Any]], label: str, count: str) -> Figure:
    """A panel for each title: `edges` of the bins, and under `counts` how many for each row."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8 * len(panels), 3.2), layout="constrained")
        styles = line_styles(row for panel in panels.values() for row in panel["counts"])
        for axes, (title, panel) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
            for row, counts in panel["counts"].items():
                look = {key: styles[row][key] for key in ("color", "linestyle")}
                axes.stairs(counts, panel["edges"], label=row, fill=False, linewidth=1.6, **look)
            axes.set(xlabel=label, title=title)
        figure.axes[0].set_ylabel(count)
        figure.axes[0].legend(fontsize=8)
    return figure


def line_styles(rows: Any) -> dict[str, dict[str, Any]]:
    """The same colour and marker for a row in all panels; after eight, dashed."""
    names = list(dict.fromkeys(rows))
    return {
        row: {
            "color": LIGHT[i % len(LIGHT)], "marker": MARKERS[i % len(MARKERS)], "linestyle": "-" if i < 8 else "--",
        }
        for i, row in enumerate(names)
    }  # fmt: skip
