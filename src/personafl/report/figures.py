"""The report's figures for a paper: PNG and PDF, drawn by matplotlib from the same data as the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtri

from personafl.errors import RunError
from personafl.files import disk_errors, write_atomically
from personafl.palette import LIGHT, MARKERS

MAKER = "personafl report"
FORMATS = {".png": {"Software": MAKER}, ".pdf": {"Creator": MAKER, "CreationDate": None}}
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.6, "lines.markersize": 4.5,
}  # fmt: skip
Data = Mapping[str, Any]


def write_figures(data: Data, folder: Path) -> list[Path]:
    """Draw what the data has figures for; only figures made here are overwritten.

    Parameters
    ----------
    data
        What `report_data` made.
    folder
        Where they go; it is made where it does not exist.
    """
    with disk_errors(folder, "creating"):
        folder.mkdir(parents=True, exist_ok=True)
    made = []
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw(data)
            if figure is None:
                continue
            for suffix, metadata in FORMATS.items():
                path = folder / f"{name}{suffix}"
                _check(path)
                save = partial(figure.savefig, dpi=200, format=suffix[1:], metadata=metadata, bbox_inches="tight")
                write_atomically(path, save)
                made.append(path)
    return made


def curves(data: Data) -> Figure | None:
    """Test accuracy (or loss) over rounds: mean and range over seeds, of both models."""
    lines = [c for c in data["curves"] if c["measure"] == data["measure"]["key"]]
    if not lines:
        return None
    who = sorted({c["who"] for c in lines}, reverse=True)  # personal before global
    figure = Figure(figsize=(4.6 * len(who), 3.4), layout="constrained")
    for axes, which in zip(np.atleast_1d(figure.subplots(1, len(who), sharey=True)), who, strict=True):
        for c in (c for c in lines if c["who"] == which):
            mean, low, high = (_scaled(data, c[key]) for key in ("mean", "low", "high"))
            style = _style(data, c["method"], which)
            axes.plot(c["rounds"], mean, markevery=max(1, len(mean) // 8), **style)
            if max(c["seeds"]) > 1:
                axes.fill_between(c["rounds"], low, high, color=style["color"], alpha=0.13, linewidth=0)
        axes.set(xlabel="round", title="the clients' models" if which == "personal" else "global model")
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel(_title(data))
    return figure


def distribution(data: Data) -> Figure | None:
    """Each client's accuracy (or loss) with its personalized model: histogram and empirical distribution."""
    found = {i: v for i in range(len(data["methods"])) if len(v := _values(data, i))}
    if not found:
        return None
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    everything = np.concatenate(list(found.values()))
    bins = np.linspace(everything.min(), everything.max(), 21) if everything.min() < everything.max() else 5
    for i, values in found.items():
        style = _style(data, i)
        left.hist(values, bins=bins, histtype="step", color=style["color"], label=style["label"], linewidth=1.4)
        share = np.arange(1, len(values) + 1) / len(values)
        right.step(np.sort(values), 100 * share, where="post", markevery=max(1, len(values) // 8), **style)
    left.set(xlabel=_title(data), ylabel="clients")
    right.set(xlabel=_title(data), ylabel="clients at or below, %")
    right.legend(fontsize=8)
    return figure


def pairs(data: Data) -> Figure | None:
    """Every client with the best method against every other one: who gains, who loses."""
    if data["judgement"] is None or len(data["methods"]) < 2:
        return None
    best, who = (data["judgement"][key] for key in ("best", "best_model"))
    best = next(i for i, m in enumerate(data["methods"]) if m["name"] == best)
    others = [
        (i, *p) for i in range(len(data["methods"]))
        if (i, "personal") != (best, who) and len((p := _pairs(data, i, best, who))[0])
    ][:8]  # fmt: skip
    if not others:
        return None
    columns = min(4, len(others))
    rows = -(-len(others) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.4, 2.7 * rows + 0.3), layout="constrained")
    grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axes, (i, x, y) in zip(grid, others, strict=False):
        low, high = min(x.min(), y.min()), max(x.max(), y.max())
        axes.plot([low, high], [low, high], color="#59636f", linewidth=0.8, linestyle="--")
        better = (y - x) * data["measure"]["better"]
        for rows_of, colour in ((better == 0, "#9aa5b1"), (better < 0, "#c9471f"), (better > 0, "#0a5ca8")):
            axes.scatter(x[rows_of], y[rows_of], s=9, color=colour, alpha=0.55, linewidths=0)
        axes.set(xlabel=_style(data, i)["label"], ylabel=_style(data, best, who)["label"], aspect="equal")
    for axes in grid[len(others) :]:
        axes.remove()
    above = "better" if data["measure"]["better"] > 0 else "worse"
    first = _style(data, best, who)["label"]
    figure.suptitle(f"{_title(data)} of each client; above the line: {above} with {first}", fontsize=9)
    return figure


def clients(data: Data) -> Figure | None:
    """Sizes and classes of the clients of the first federation."""
    if not data["federations"]:
        return None
    federation = data["federations"][0]
    shares = federation.get("shares")
    figure = Figure(figsize=(9.2 if shares else 4.6, 3.2), layout="constrained")
    left, *rest = figure.subplots(1, 2 if shares else 1, squeeze=False)[0]
    sizes = np.sort(federation["n_train"])[::-1]
    left.stairs(sizes, fill=True, color=LIGHT[0])
    left.set(xlabel="clients, largest first", ylabel="training samples")
    if sizes[-1] > 0 and sizes[0] > 30 * sizes[-1]:
        left.set_yscale("log")
        left.set_ylim(bottom=0.8 * sizes[-1])
    if shares:
        axes = rest[0]
        image = axes.imshow(np.array(shares["values"]).T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        axes.grid(False)
        axes.set(xlabel=f"clients, by {shares['by']}", ylabel="class", xticks=[])
        if len(shares["labels"]) <= 20:
            axes.set_yticks(range(len(shares["labels"])), shares["labels"])
        figure.colorbar(image, ax=axes, label="share of the test data")
    return figure


def uncertainty(data: Data) -> Figure | None:
    """Self-FL: σ², local steps and GAIN over rounds, medians and quantiles over clients."""
    if not data["uncertainty"]:
        return None
    figure = Figure(figsize=(10.5, 3.0), layout="constrained")
    titles = {"sigma2": "uncertainty σ²", "steps": "local steps ℓ", "gain": "GAIN"}
    for axes, (key, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for entry in data["uncertainty"]:
            values, style = np.array(entry[key], np.float64), _style(data, entry["method"])
            for low, high in ((0, 4), (1, 3)):
                axes.fill_between(entry["rounds"], values[:, low], values[:, high], color=style["color"], alpha=0.13)
            axes.plot(entry["rounds"], values[:, 2], markevery=max(1, len(values) // 8), **style)
        axes.set(xlabel="round", ylabel=title)
        known = values[np.isfinite(values)]
        if key != "steps" and len(known) and known.min() > 0 and known.max() > 20 * known.min():
            axes.set_yscale("log")
    if len(data["uncertainty"]) > 1:
        figure.axes[0].legend(fontsize=8)
    return figure


def collaboration(data: Data) -> Figure | None:
    """FedAMP: who takes how much from whom, in the first run of each method."""
    first = list({data["runs"][c["run"]]["method"]: c for c in reversed(data["collaboration"])}.items())[::-1]
    if not first:
        return None
    figure = Figure(figsize=(4.4 * len(first), 3.8), layout="constrained")
    for axes, (method, matrix) in zip(np.atleast_1d(figure.subplots(1, len(first))), first, strict=True):
        weights = np.array(matrix["weights"], np.float64)
        if matrix["each"] == 1:
            np.fill_diagonal(weights, np.nan)  # a client's own model
        known = weights[np.isfinite(weights)]
        top = float(np.quantile(known, 0.99)) if len(known) else 1.0
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=top or 1.0, interpolation="nearest")
        axes.grid(False)
        axes.set(title=_style(data, method)["label"], xlabel=f"takes from … (by {matrix['by']})", ylabel="a client …")
        axes.set(xticks=[], yticks=[])
        figure.colorbar(image, ax=axes, label="weight ξ", shrink=0.8)
    return figure


def distillation(data: Data) -> Figure | None:
    """PersFL: rounds of the teachers, and the temperatures and imitations that clients chose."""
    if not data["distillation"]:
        return None
    entries = data["distillation"]
    figure = Figure(figsize=(8.0, 2.9 * len(entries)), layout="constrained")
    for (left, right), entry in zip(figure.subplots(len(entries), 2, squeeze=False), entries, strict=True):
        left.bar(entry["rounds"], entry["clients"], 0.9, color=_style(data, entry["method"])["color"])
        left.set(xlabel="round of the teacher", ylabel="clients", xlim=(-0.5, entry["last"] + 0.5))
        left.set_title(_style(data, entry["method"])["label"], fontsize=9, loc="left")
        counts = np.array(entry["chosen"])
        right.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
        right.grid(False)
        for (r, c), count in np.ndenumerate(counts):
            dark = count > 0.6 * max(counts.max(), 1)
            right.text(c, r, str(count), ha="center", va="center", color="white" if dark else "black")
        right.set_xticks(range(counts.shape[1]), [f"{v:g}" for v in entry["imitations"]])
        right.set_yticks(range(counts.shape[0]), [f"{v:g}" for v in entry["temperatures"]])
        right.set(xlabel="imitation λ", ylabel="temperature T")
    return figure


def detection(data: Data) -> Figure | None:
    """DET curves with normal-deviate axes."""
    if not data["detection"]:
        return None
    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    axes = figure.subplots()
    low, high = 0.002, 0.9
    for entry in data["detection"]:
        for who in (w for w in ("personal", "global") if w in entry):
            curve = entry[who]
            x = ndtri(np.array(curve["false_rejection"]))
            y = {k: ndtri(np.clip(np.array(curve[k]), low / 2, 0.99)) for k in ("mean", "low", "high")}
            line = {"marker": "", "linestyle": "-" if who == "personal" else "--"}
            style = _style(data, entry["method"], who) | line
            style["label"] += f" ({100 * curve['equal_error_rate']:.1f} % EER)"
            axes.plot(x, y["mean"], **style)
            if curve["seeds"] > 1:
                axes.fill_between(x, y["low"], y["high"], color=style["color"], alpha=0.13, linewidth=0)
    ticks = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8])
    for which in (axes.xaxis, axes.yaxis):
        which.set_ticks(ndtri(ticks), [f"{100 * t:g}" for t in ticks])
    axes.set(xlim=ndtri([low, high]), ylim=ndtri([low, high]), xlabel="false rejections, %", ylabel="false alarms, %")
    axes.legend(fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Data], Figure | None]] = {
    "curves": curves, "distribution": distribution, "pairs": pairs, "clients": clients, "uncertainty": uncertainty,
    "collaboration": collaboration, "distillation": distillation, "detection": detection,
}  # fmt: skip


def _style(data: Data, method: int, who: str = "personal") -> dict[str, Any]:
    kinds = len(LIGHT)
    marker = MARKERS[(method + method // kinds) % kinds]
    about = data["methods"][method]
    label = about["label"] if who == "personal" else f"{about['name']}, global model"
    return {"color": LIGHT[method % kinds], "marker": marker, "label": _plain(label)}


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would typeset what stands between dollars


def _title(data: Data) -> str:
    measure = data["measure"]
    return f"{measure['title']}, {measure['unit']}" if measure["unit"] else str(measure["title"])


def _scaled(data: Data, values: Any) -> Any:
    return np.array(values, np.float64) * data["measure"]["scale"]


def _values(data: Data, method: int) -> Any:
    """The clients' values with a method's personalized models, over its seeds."""
    mine = [v["personal"] for run, v in zip(data["runs"], data["values"], strict=True)
            if run["method"] == method and v["personal"]]  # fmt: skip
    values = _scaled(data, [value for each in mine for value in each])
    return values[np.isfinite(values)]


def _pairs(data: Data, a: int, b: int, who: str) -> tuple[Any, Any]:
    """Clients' values with a's personalized models and b's (or its global one), where both had the same data."""
    x, y = [], []
    for run, values in zip(data["runs"], data["values"], strict=True):
        for other, others in zip(data["runs"], data["values"], strict=True):
            same = (run["method"], other["method"], run["federation"]) == (a, b, other["federation"])
            if same and values["personal"] and others[who]:
                x += values["personal"]
                y += others[who]
    both = np.array([_scaled(data, x), _scaled(data, y)]).reshape(2, -1)
    both = both[:, np.isfinite(both).all(0)]
    return both[0], both[1]


def _check(path: Path) -> None:
    try:
        ours = not path.exists() or (path.is_file() and MAKER.encode() in path.read_bytes())
    except OSError:
        ours = False
    if not ours:
        raise RunError(f"{path} exists and is not a figure of `personafl report`: name another folder with --figures")
