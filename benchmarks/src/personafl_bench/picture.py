"""The results of `personafl bench` as bars."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from personafl.errors import DataError
from personafl.files import write_atomically
from personafl_bench.report import ratio

FORMATS = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
OURS, REFERENCE, THEIRS = "#2680c2", "#9aa5b1", "#e07b39"
_REFERENCES = ("hand-written", "plain vmap", "tight loop")


def check_picture(path: Path) -> None:
    """The file has a format that can be drawn, and its folder exists."""
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"--picture {path}: the picture can be {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise DataError(f"--picture {path}: there is no folder {path.parent}")


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the jobs that are rounds of training: a bar for everybody, a line for what the machine could do."""
    check_picture(path)
    jobs = [job for job in results["jobs"] if job["loss_before"] is not None and job["contestants"]]
    if not jobs:
        raise DataError("there is nothing to draw: the picture shows rounds of training, as jobs a to d and g to k are")
    heights = [len(job["contestants"]) + 1.6 for job in jobs]
    figure = Figure(figsize=(8.0, 0.7 + 0.3 * sum(heights)), layout="constrained")
    places = figure.subplots(len(jobs), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, job in zip(places, jobs, strict=True):
        _bars(axes, job)
    places[-1].set_xlabel(
        f"milliseconds a round, minimum, {results['threads']} cores; dotted: what {results['gflops']:.0f} GFLOP/s "
        f"and {results['gb_per_s']:.0f} GB/s allow",
        fontsize=8,
    )
    save = partial(figure.savefig, dpi=130, format=path.suffix[1:].lower(), metadata=FORMATS[path.suffix.lower()])
    with matplotlib.rc_context({"svg.hashsalt": "personafl bench"}):
        write_atomically(path, save)


def _bars(axes: Axes, job: dict[str, Any]) -> None:
    entries = sorted(job["contestants"].items(), key=lambda item: item[1]["min_ms"])
    names = [name for name, _ in entries]
    times = [entry["min_ms"] for _, entry in entries]
    colours = [OURS if name == "personafl" else REFERENCE if name in _REFERENCES else THEIRS for name in names]
    bars = axes.barh(names, times, color=colours, height=0.7)
    labels = [f"{e['min_ms']:.0f} ms" + (f", {ratio(e['ratio'])}×" if e["ratio"] else "") for _, e in entries]
    axes.bar_label(bars, labels, padding=3, fontsize=7)
    axes.axvline(job["limit_ms"], color="#333333", linestyle=":", linewidth=1)
    axes.set_xlim(0, max(times) * 1.2)
    axes.invert_yaxis()
    axes.set_title(job["about"], fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
