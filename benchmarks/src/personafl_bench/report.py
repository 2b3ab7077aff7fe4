"""The results of `personafl bench` for a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table


def tables(results: dict[str, Any]) -> list[Table]:
    """A table for each job."""
    return [_table(job, results) for job in results["jobs"]]


def _table(job: dict[str, Any], results: dict[str, Any]) -> Table:
    learned = job["loss_before"] is not None
    notes = [
        f"limit {job['limit_ms']:.1f} ms: {job['least_gflop']:.2g} GFLOP at {results['gflops']:.0f} GFLOP/s, "
        f"{job['least_mb']:.2g} MB at {results['gb_per_s']:.1f} GB/s, as measured in this run; data: {job['data']}"
    ]
    if learned:
        notes.append(
            f"loss after {job['rounds_before_loss']} rounds, before: {job['loss_before']:.3f}; ! where it is odd"
        )
    notes += [f"{name}: {entry['setting']}" for name, entry in job["contestants"].items()]
    notes += [f"{name} left out: {reason}" for name, reason in job["left_out"].items()]
    table = Table(title=f"({job['job']}) {job['about']}", caption=escape("\n".join(notes)), caption_justify="left")
    table.add_column("", no_wrap=True)
    columns = ["min ms", "median ms", f"× {job['compared_with']}", "× limit", "CPU ms", "peak MB"]
    for column in [*columns, "loss"] if learned else columns:
        table.add_column(column, justify="right")
    for name, entry in job["contestants"].items():
        cells = [
            f"{entry['min_ms']:.1f}", f"{entry['median_ms']:.1f}", ratio(entry["ratio"]),
            ratio(entry["min_ms"] / job["limit_ms"]), f"{entry['cpu_ms']:.1f}",
            "" if entry["peak_mb"] is None else f"{entry['peak_mb']:.0f}",
        ]  # fmt: skip
        if learned:
            cells.append(_loss(entry))
        table.add_row(" ".join(filter(None, (name, entry["version"]))), *cells)
    return table


def ratio(value: float | None) -> str:
    """A ratio with as many digits as mean something; nothing for None."""
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _loss(entry: dict[str, Any]) -> str:
    if entry["loss"] is None:
        return ""
    return f"{entry['loss']:.3f}" + ("" if entry.get("learns", True) else " !")
