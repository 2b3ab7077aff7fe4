"""The critical-difference picture: methods at their mean ranks, a bar over those that are not told apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from personafl.files import write_atomically
from personafl.palette import LIGHT
from personafl_papers.methods.ranks import groups

STYLE: Any = {"font.size": 9, "svg.hashsalt": "personafl", "svg.fonttype": "path"}
LINE, BAR = 0.22, 0.09
"""Inches between two names, and between two bars."""


def picture(methods: Sequence[str], means: Sequence[float], difference: float) -> Figure:
    """Draw mean ranks: the axis on top, names at both sides, the better half at the left.

    Bars join methods whose mean ranks are less than the critical difference apart: Nemenyi's test does not tell the
    first and the last of them apart.
    """
    order = np.argsort(means, kind="stable")
    left, right = order[: (len(order) + 1) // 2], order[(len(order) + 1) // 2 :][::-1]
    bars = groups(means, difference)
    above = 0.62 + BAR * len(bars)
    height = above + LINE * len(left) + 0.1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, height))
        axes = figure.add_axes((0.24, 0.0, 0.52, 1.0))
        axes.set(xlim=(1, len(methods)), ylim=(height, 0))
        axes.axis("off")
        _scale(axes, len(methods), difference)
        for count, (first, last) in enumerate(bars):
            y = 0.58 + BAR * count
            axes.plot([first - 0.08, last + 0.08], [y, y], color=LIGHT[6], linewidth=2.6, solid_capstyle="butt")
        for side, some in (("left", left), ("right", right)):
            for row, method in enumerate(some):
                _name(axes, side, above + LINE * (row + 0.5), methods[method], float(means[method]), len(methods))
    return figure


def _scale(axes: Any, methods: int, difference: float) -> None:
    axes.plot([1, methods], [0.48, 0.48], color=LIGHT[6], linewidth=1.0, clip_on=False)
    step = max(1, round(methods / 10))
    for rank in sorted({1, *range(step, methods + 1, step), methods} - ({methods - 1} if step > 1 else set())):
        axes.plot([rank, rank], [0.42, 0.48], color=LIGHT[6], linewidth=1.0, clip_on=False)
        axes.text(rank, 0.4, str(rank), ha="center", va="bottom")
    reach = min(difference, methods - 1)
    axes.plot([1, 1 + reach], [0.14, 0.14], color=LIGHT[1], linewidth=2.0, solid_capstyle="butt", clip_on=False)
    axes.text(1 + reach + 0.01 * methods, 0.14, f" critical difference {difference:.1f}", va="center", color=LIGHT[1])


def _name(axes: Any, side: str, y: float, method: str, mean: float, methods: int) -> None:
    edge = 1 if side == "left" else methods
    axes.plot([mean, mean, edge], [0.48, y, y], color=LIGHT[0], linewidth=0.7, clip_on=False, alpha=0.75)
    gap = 0.015 * (methods - 1)
    words = f"{method}  {mean:.1f}" if side == "left" else f"{mean:.1f}  {method}"
    axes.text(
        edge - gap if side == "left" else edge + gap, y, words, ha="right" if side == "left" else "left", va="center"
    )


def write_picture(figure: Figure, path: Path) -> None:
    """Write an .svg or .png, the same to the byte for the same numbers."""
    kind = path.suffix[1:]
    metadata = {"Date": None} if kind == "svg" else {"Software": "personafl study"}
    with matplotlib.rc_context(STYLE):
        write_atomically(path, partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
