"""Pictures of a fit for a notebook: who gains, which models clients use, and what was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from personafl.errors import ConfigError
from personafl.fitting.ending import measured
from personafl.metrics.measures import Measure
from personafl.palette import LIGHT, MARKERS
from personafl.runs.plots import RunPlots, axes, draw_gains, finish, heading, plain
from personafl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OVER = {"alone": "training alone", "global": "one model for all"}


class FitPlots(RunPlots):
    """The pictures of a fit, beside `clients` of a run."""

    def __init__(self, run: Run, summary: dict[str, Any]) -> None:
        super().__init__(run)
        self._fit, self._summary = run, summary

    def curves(self, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """The best score on validation data so far, over the seconds that were spent.

        Parameters
        ----------
        measure
            The one that the fit chose by; no other was kept.
        ax
            Where to draw; left out, a new figure.
        """
        own = self._fit.primary
        if measure not in (None, own.name):
            raise ConfigError(f"a fit keeps what it tried by {own.name} alone, not by {measure!r}")
        tried = sorted((at, score) for at, score in self._outcomes())
        ax = axes(ax)
        best = np.maximum.accumulate([score for _, score in tried])
        ax.step([at for at, _ in tried], self._shown(own, best), where="post", color=LIGHT[0], label="the best so far")
        finish(ax, "seconds", f"{heading(own)}, validation data")
        return ax

    def gains(self, over: Any = "alone", measure: str | None = None, ax: Axes | None = None) -> Axes:
        """A bar for each client: how much better the fit is than training alone, or than one model for all.

        Parameters
        ----------
        over
            `alone` or `global`; or a run with the same clients.
        measure, ax
            As in `Run.plot.gains`; `alone` and `global` were measured by the first one.
        """
        if not isinstance(over, str):
            return super().gains(over, measure, ax)
        if over not in OVER:
            raise ConfigError(f"over must be {', '.join(OVER)} or a run, not {over!r}")
        what, clients = self._fit.primary, self._fit.clients()
        gain = (what.better or 1) * (measured(clients, what, "personal") - measured(clients, what, over))
        return draw_gains(gain, what, OVER[over], axes(ax))

    def weights(self, ax: Axes | None = None) -> Axes:
        """A bar for each client: how much each finalist counts for it."""
        weights = np.array(self._summary["weights"], np.float64)
        order = np.lexsort((*(-weights).T[::-1], weights.argmax(axis=1)))
        ax, bottom = axes(ax), np.zeros(len(weights))
        for f, finalist in enumerate(self._summary["finalists"]):
            shares = weights[order, f]
            if shares.any():
                label = plain(finalist["label"])
                ax.bar(np.arange(len(shares)), shares, 0.95, bottom, color=LIGHT[f % len(LIGHT)], label=label)
                bottom += shares
        ax.set_ylim(0, 1)
        finish(ax, "clients, by the model that counts most", "weight")
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
        return ax

    def tried(self, ax: Axes | None = None) -> Axes:
        """A dot for each training of each candidate: after how many rounds, and how good on validation data."""
        own, ax = self._fit.primary, axes(ax)
        for i, method in enumerate(dict.fromkeys(trial["method"] for trial in self._summary["trials"])):
            dots = [
                (outcome["rounds"], outcome["score"])
                for trial in self._summary["trials"]
                if trial["method"] == method
                for outcome in trial["outcomes"]
                if outcome["score"] is not None
            ]
            if dots:
                rounds, scores = np.array(dots).T
                colour, mark = LIGHT[i % len(LIGHT)], MARKERS[(i + i // len(LIGHT)) % len(MARKERS)]
                ax.scatter(rounds, self._shown(own, scores), color=colour, marker=mark, s=24, alpha=0.7,
                           label=plain(method))  # fmt: skip
        finish(ax, "rounds", f"{heading(own)}, validation data")
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return ax

    def _outcomes(self) -> list[tuple[float, float]]:
        outcomes = [outcome for trial in self._summary["trials"] for outcome in trial["outcomes"]]
        return [(o["at"], o["score"]) for o in outcomes if o["score"] is not None and o["at"] is not None]

    @staticmethod
    def _shown(measure: Measure, scores: Any) -> Any:
        """Scores are such that more is better."""
        return measure.scale * (measure.better or 1) * np.asarray(scores, np.float64)
