"""The picture of a federation: who has how many samples of which class.

Up to sixty clients are drawn as the papers do: a circle for each client and class, its area the number of samples, and
a bar for each client's size. More clients would be dots on dots, so they become columns of a heat map, sorted by the
class of which they have most, then by size.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.overview import heterogeneity, label_counts
from personafl.files import write_atomically

MAKER = "personafl partition"
CIRCLES = 60
COLOURS = ("#2680c2", "#e07b39", "#27ab83", "#8e6bbf", "#d64545", "#9aa5b1", "#b08d57", "#d96aa7", "#4f6d7a", "#c3a000")
FORMATS = {
    ".png": {"Software": MAKER},
    ".pdf": {"Creator": MAKER, "CreationDate": None},
    ".svg": {"Creator": MAKER, "Date": None},
}


def plot(federation: Federation, path: Path) -> None:
    """Draw a federation into a file, `.png`, `.pdf` or `.svg`; only a picture made here is overwritten."""
    check_target(path)
    figure = draw(federation)
    save = partial(figure.savefig, dpi=130, format=path.suffix[1:].lower(), metadata=FORMATS[path.suffix.lower()])
    with matplotlib.rc_context({"svg.hashsalt": MAKER}):
        write_atomically(path, save, private=False)


def check_target(path: Path) -> None:
    """The file has a known format, its folder exists, and what it holds, if anything, is an older picture of ours."""
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: the picture can be {', '.join(FORMATS)}; name such a file with --out")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {path.parent} for the picture; make it or name another file with --out")
    if not path.exists():
        return
    try:
        ours = path.is_file() and MAKER.encode() in path.read_bytes()
    except OSError:
        ours = False
    if not ours:
        raise DataError(f"{path} exists and is not a picture of `personafl partition`: name another file with --out")


def draw(federation: Federation) -> Figure:
    """The picture: sizes above, classes below; only sizes for a regression."""
    sizes = federation.bounds[:, 3] - federation.bounds[:, 0]
    few = len(federation) <= CIRCLES
    if federation.classes is None:
        figure = Figure(figsize=(_width(len(federation)), 3.2), layout="constrained")
        _sizes(figure.subplots(), federation, np.arange(len(sizes)) if few else np.argsort(-sizes, kind="stable"))
        figure.axes[0].set_xlabel("client" if few else "clients, by size")
    else:
        counts = label_counts(federation)
        order = np.arange(len(counts)) if few else np.lexsort((-sizes, counts.argmax(axis=1)))
        height = 1.2 + np.clip(0.26 * federation.classes, 2.2, 9.0)
        figure = Figure(figsize=(_width(len(federation)), 1.3 + height), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, height - 0.6))
        _sizes(above, federation, order)
        (_circles if few else _heat_map)(below, federation, counts[order])
        below.set(ylabel="class", xlabel="client" if few else "clients, by most frequent class, then by size")
        below.yaxis.set_major_locator(MaxNLocator(24, integer=True))
    if few:
        figure.axes[-1].xaxis.set_major_locator(MaxNLocator(30, integer=True))
    figure.suptitle(_title(federation), fontsize=10)
    return figure


def _width(clients: int) -> float:
    return float(np.clip(2.5 + 0.17 * clients, 6.0, 12.5)) if clients <= CIRCLES else 11.0


def _title(federation: Federation) -> str:
    title = f"{federation.name}: {len(federation):,} clients, {len(federation.y):,} samples"
    if federation.classes is None:
        return title
    return f"{title}, {federation.classes} classes, heterogeneity {heterogeneity(federation):.2f}"


def _sizes(axes: Axes, federation: Federation, order: Any) -> None:
    """A bar a client, coloured by group."""
    sizes = (federation.bounds[:, 3] - federation.bounds[:, 0])[order]
    names, member = _groups(federation, order)
    spread_out = sizes.max() > 50 * np.median(sizes) or sizes.max() > 200 * sizes.min()
    edges = np.arange(len(sizes) + 1) - 0.5
    for g, name in enumerate(names):
        mine, colour = member == g, COLOURS[g % len(COLOURS)]
        if len(sizes) <= CIRCLES:
            axes.bar(np.flatnonzero(mine), sizes[mine], 0.75, color=colour, label=name)
        else:  # a thousand bars are slow, and their edges would be all one sees
            base = 0.8 * sizes.min() if spread_out else 0.0
            axes.stairs(np.where(mine, sizes, np.nan), edges, baseline=base, fill=True, color=colour, label=name)
    if federation.groups and len(names) <= len(COLOURS):
        axes.legend(frameon=False, fontsize=8, ncols=min(len(names), 5), loc="lower right", bbox_to_anchor=(1, 0.96))
    axes.set(ylabel="samples", yscale="log" if spread_out else "linear", xlim=(edges[0] - 0.2, edges[-1] + 0.2))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _circles(axes: Axes, federation: Federation, counts: Any) -> None:
    clients, classes = np.nonzero(counts)
    amount = counts[clients, classes]
    _, member = _groups(federation, np.arange(len(counts)))
    colours = np.array(COLOURS)[member[clients] % len(COLOURS)]
    # The largest circle just fills a cell; areas are in square points.
    width, height = axes.figure.get_figure(root=True).get_size_inches()
    cell = 72 * min(0.88 * width / counts.shape[0], 0.57 * height / counts.shape[1])
    area = np.maximum(cell**2 * amount / amount.max(), 4.0)  # less could not be seen
    axes.scatter(clients, classes, s=area, color=colours, alpha=0.8, linewidths=0)
    axes.set(ylim=(-0.8, counts.shape[1] - 0.2))
    axes.set_title(f"circle area: samples, the largest {amount.max():,}", fontsize=8, loc="left", pad=3)
    axes.grid(alpha=0.2, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _heat_map(axes: Axes, federation: Federation, counts: Any) -> None:
    shares = np.ma.masked_equal((counts / counts.sum(axis=1, keepdims=True)).T, 0)
    image = axes.imshow(
        shares, aspect="auto", origin="lower", cmap="YlGnBu", interpolation="nearest", vmin=-0.1, vmax=1.0
    )
    bar = axes.figure.colorbar(image, ax=axes, label="share of the client's samples", pad=0.01, fraction=0.04)
    bar.ax.set_ylim(0, 1)


def _groups(federation: Federation, order: Any) -> tuple[list[str | None], Any]:
    """The groups in order of appearance, and the position of each client's; without groups, one without a name."""
    if federation.groups is None:
        return [None], np.zeros(len(order), np.int64)
    position = {name: g for g, name in enumerate(dict.fromkeys(federation.groups))}
    return list(position), np.array([position[federation.groups[m]] for m in order])
