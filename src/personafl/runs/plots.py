"""Pictures of a run for a notebook: `run.plot.curves()`, `run.plot.clients()`, `run.plot.gains()`.

Each is drawn into `ax`, or into a new figure of pyplot, which a notebook shows by itself; the axes are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from personafl.errors import ConfigError, RunError
from personafl.metrics.inputs import Floats
from personafl.metrics.measures import Measure
from personafl.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from personafl.runs.tables import RunTables

CALLED = {"personal": "the clients' models", "global": "global model"}
BETTER, WORSE, SAME = LIGHT[0], LIGHT[1], "#9aa5b1"


class RunPlots:
    """The pictures of a run.

    Examples
    --------
    >>> import personafl as pf
    >>> from torch import nn
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> run = pf.train(fed, nn.Linear(64, 10), pf.Ditto(), rounds=2, progress=False)
    >>> run.plot.curves().get_xlabel()
    'round'
    """

    def __init__(self, run: RunTables) -> None:
        self._run = run

    def curves(self, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """A measure on test data over the rounds: of the clients' models, and of the global one where there is one.

        Parameters
        ----------
        measure
            One of `run.measures`, or `loss`; left out, the first one.
        ax
            Where to draw; left out, a new figure.
        """
        what = measure_of(self._run, measure)
        found = {who: curve_of(self._run, what, who) for who in CALLED}
        if not any(len(rounds) for rounds, _ in found.values()):
            raise RunError(f"{self._run.path} has no {what.label} on test data to draw")
        ax = axes(ax)
        for (who, (rounds, values)), colour in zip(found.items(), LIGHT, strict=False):
            if len(rounds):
                ax.plot(rounds, what.scale * values, color=colour, label=CALLED[who], **dots(len(rounds)))
        finish(ax, "round", heading(what), legend=True)
        note_single(ax, max(len(rounds) for rounds, _ in found.values()))
        return ax

    def clients(self, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """A dot for each client: how many training samples it has, and how good its model is on its test data.

        Parameters
        ----------
        measure, ax
            As in `curves`.
        """
        what = measure_of(self._run, measure)
        table, ax = self._run.clients(), axes(ax)
        size = table.column("n_train").to_numpy()
        for who, colour, mark in (("global", LIGHT[1], "x"), ("personal", LIGHT[0], "o")):
            values = values_in(table, what, who)
            if values is not None:
                ax.scatter(size, what.scale * values, color=colour, marker=mark, s=18, alpha=0.7, label=CALLED[who])
        if len(size) and size.max() > 30 * max(size.min(), 1):
            ax.set_xscale("symlog" if size.min() == 0 else "log")
        finish(ax, "training samples", heading(what), legend=True)
        return ax

    def gains(self, over: RunTables | None = None, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """A bar for each client: how much better its model is than another one. Bars below zero are clients that lose.

        Parameters
        ----------
        over
            A run with the same clients, such as one of training alone (`separate`); left out, this run's global model.
        measure, ax
            As in `curves`.
        """
        what = measure_of(self._run, measure)
        own, other = _side_by_side(self._run, over, what)
        called = "the global model" if over is None else f"{over.manifest['algorithm']['name']}"
        return draw_gains((what.better or 1) * (own - other), what, called, axes(ax))


def draw_gains(gain: Floats, measure: Measure, over: str, ax: Axes) -> Axes:
    """A bar for each client that has a value, the largest gain first."""
    known = np.sort(gain[np.isfinite(gain)])[::-1]
    if not len(known):
        raise RunError(f"no client has {measure.label} with both models: there is nothing to compare")
    colours = np.where(known > 0, BETTER, np.where(known < 0, WORSE, SAME))
    ax.bar(np.arange(len(known)), measure.scale * known, 0.85, color=colours.tolist())
    ax.axhline(0, color="grey", linewidth=0.8)
    better, worse = int((known > 0).sum()), int((known < 0).sum())
    finish(ax, "clients, the largest gain first", f"gain over {over}, {points(measure)}")
    ax.set_title(f"{better} clients do better, {worse} worse, {len(known) - better - worse} the same", fontsize=10)
    return ax


def measure_of(run: RunTables, name: str | None) -> Measure:
    """A measure of a run by its name; the first one where none is named."""
    if name is None:
        return run.primary
    known = {measure.name: measure for measure in (*run.measures, Measure("loss", -1, "loss"))}
    if name not in known:
        raise ConfigError(f"measure must be one of {', '.join(known)}, not {name!r}")
    return known[name]


def curve_of(run: RunTables, measure: Measure, who: str) -> tuple[Floats, Floats]:
    """The rounds that were evaluated, and the values."""
    key = f"{who}_{measure.name}"
    found = [(record["round"], record[key]) for record in run.rounds() if record.get(key) is not None]
    pairs = np.array(found, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def values_in(table: Any, measure: Measure, who: str) -> Floats | None:
    """Each client's value, NaN where it has none; None where no client has one."""
    name = f"{who}_{measure.name}"
    if name not in table.column_names:
        return None
    values = np.asarray(table.column(name).to_numpy(zero_copy_only=False), np.float64)
    return values if np.isfinite(values).any() else None


def axes(ax: Axes | None, size: tuple[float, float] = (6.4, 3.6)) -> Axes:
    """The axes that somebody gave, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def dots(evaluations: int) -> dict[str, Any]:
    """How a line of few points is marked."""
    return {"marker": "o", "markersize": 4} if evaluations < 15 else {}


def note_single(ax: Axes, evaluations: int) -> None:
    """Say how to get a curve where there is a dot."""
    if evaluations == 1:
        ax.set_title("one evaluation; eval_every=1 gives a curve", fontsize=10)


def points(measure: Measure) -> str:
    """What differences are counted in."""
    return f"points of {measure.label}" if measure.unit == "%" else measure.label


def heading(measure: Measure) -> str:
    """How an axis is called."""
    return f"{measure.label}, {measure.unit}" if measure.unit else measure.label


def finish(ax: Axes, x: str, y: str, legend: bool = False) -> None:
    """Labels and a light grid. What users named is written as it is: matplotlib would typeset what dollars enclose."""
    ax.set(xlabel=plain(x), ylabel=plain(y))
    ax.grid(alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend and ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=9)


def plain(text: str) -> str:
    """A text in which dollars are dollars."""
    return text.replace("$", r"\$")


def _side_by_side(run: RunTables, over: RunTables | None, measure: Measure) -> tuple[Floats, Floats]:
    """Values of the same clients, of this run and of another, or of its global model."""
    table = run.clients()
    own, ids = values_in(table, measure, "personal"), table.column("client").to_pylist()
    if over is None:
        other, where = values_in(table, measure, "global"), run.path
    else:
        other, where = _in_order(over, measure, ids), over.path
    for values, path in ((own, run.path), (other, where)):
        if values is None:
            raise RunError(f"{path} has no {measure.label} of such models on test data: name another run with over=…")
    assert own is not None and other is not None
    return own, other


def _in_order(run: RunTables, measure: Measure, ids: Sequence[str]) -> Floats | None:
    table = run.clients()
    values = values_in(table, measure, "personal")
    if values is None:
        return None
    by_id = dict(zip(table.column("client").to_pylist(), values.tolist(), strict=True))
    if missing := [client for client in ids if client not in by_id]:
        raise RunError(f"{run.path} has no client {missing[0]!r}: gains are over a run with the same clients")
    return np.array([by_id[client] for client in ids])
