"""Pictures of a comparison for a notebook: `found.plot.scores()`, `found.plot.curves()`, `found.plot.gains()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from personafl.errors import ConfigError, RunError
from personafl.metrics.measures import Measure
from personafl.palette import LIGHT, MARKERS
from personafl.runs.plots import axes, curve_of, finish, heading, note_single, plain, points
from personafl.runs.run import Run
from personafl.study.differences import Floats, Row
from personafl.study.judgement import Judgement
from personafl.study.values import values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ComparisonPlots:
    """The pictures of a comparison, by the measure that ranks; drawn into `ax`, or into a new figure."""

    def __init__(self, judgement: Judgement, methods: Mapping[str, Mapping[int, Run]]) -> None:
        self._judgement, self._methods = judgement, methods

    def scores(self, ax: Axes | None = None) -> Axes:
        """Each model over all test samples: the mean over seeds, and its standard error. The best is above."""
        measure = self._judgement.measure
        found = {row.name: self._judgement.mean(row.key, measure.name) for row in self._judgement.rows}
        names = sorted(found, key=lambda name: (measure.better or 1) * np.nan_to_num(found[name].mean, nan=-np.inf))
        ax = axes(ax, (6.4, 1.2 + 0.32 * len(names)))
        values, errors = (
            measure.scale * np.array([getattr(found[name], part) for name in names])
            for part in ("mean", "standard_error")
        )
        ax.errorbar(values, range(len(names)), xerr=np.nan_to_num(errors), fmt="o", capsize=3, color=LIGHT[0])
        ax.set_yticks(range(len(names)), [plain(name) for name in names])
        finish(ax, f"{heading(measure)}, mean and standard error over seeds", "")
        return ax

    def curves(self, ax: Axes | None = None) -> Axes:
        """Each model over the rounds: the mean over seeds, and from the lowest to the highest seed."""
        measure, ax, most = self._judgement.measure, axes(ax), 0
        for i, row in enumerate(self._judgement.rows):
            curves = [curve_of(run, measure, row.model) for run in self._methods[row.method].values()]
            rounds = sorted(set.intersection(*(set(r.tolist()) for r, _ in curves)))
            most = max(most, len(rounds))
            if rounds:
                values = measure.scale * np.array([v[np.isin(r, rounds)] for r, v in curves])
                colour, mark = LIGHT[i % len(LIGHT)], MARKERS[(i + i // len(LIGHT)) % len(MARKERS)]
                every = max(1, len(rounds) // 6)
                ax.plot(rounds, values.mean(0), color=colour, marker=mark, markevery=every, label=plain(row.name))
                ax.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.13, linewidth=0)
        finish(ax, "round", heading(measure), legend=True)
        note_single(ax, most)
        return ax

    def gains(self, over: str = "separate", ax: Axes | None = None) -> Axes:
        """How each model's clients are spread by what they gain over another method: half of them are in the box.

        Parameters
        ----------
        over
            The method whose models the clients would have otherwise: training alone, unless another is named.
        ax
            Where to draw; left out, a new figure.
        """
        if over not in self._methods:
            raise ConfigError(f"over must be one of {', '.join(self._methods)}, not {over!r}")
        rows = [row for row in self._judgement.rows if row.method != over]
        found = {row.name: self._gains(row, over) for row in rows}
        found = {name: gains for name, gains in found.items() if len(gains)}
        if not found:
            raise RunError(f"no method was measured on the same clients as {over}: there is nothing to compare")
        measure, names = self._judgement.measure, sorted(found, key=lambda name: float(np.median(found[name])))
        ax = axes(ax, (6.4, 1.2 + 0.42 * len(names)))
        ax.axvline(0, color="grey", linewidth=0.8)
        scaled = [measure.scale * found[name] for name in names]
        ax.boxplot(scaled, orientation="horizontal", widths=0.6, showmeans=True, flierprops={"markersize": 3})
        shares = [
            f"{plain(name)}\n{np.mean(found[name] > 0):.0%} gain, {np.mean(found[name] < 0):.0%} lose" for name in names
        ]
        ax.set_yticks(range(1, len(names) + 1), shares, fontsize=9)
        finish(ax, f"a client's gain over {over}, {points(measure)}", "")
        return ax

    def _gains(self, row: Row, over: str) -> Floats:
        """Each client's gain, of all seeds in which both were measured on the same clients."""
        found = [
            _gain(self._judgement.measure, run, self._methods[over][seed], row)
            for seed, run in self._methods[row.method].items()
            if seed in self._methods[over]
        ]
        gains: Floats = np.concatenate([np.zeros(0), *found])
        return np.asarray(gains[np.isfinite(gains)])


def _gain(measure: Measure, run: Run, other: Run, row: Row) -> Floats:
    same = run.clients().column("client").equals(other.clients().column("client"))
    own, alone = values_of(run, measure, row.model), values_of(other, measure)
    if not same or own is None or alone is None:
        return np.zeros(0)
    return np.asarray((measure.better or 1) * (own - alone))
