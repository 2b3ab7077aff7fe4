"""FedAMP's looks at single clients: tests over paired clients, and who collaborates with whom (Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from personafl.metrics import holm, wilcoxon
from personafl.runs.run import Run
from personafl.study.judgement import accuracy_of
from personafl_papers.tables.claims import Check, Finding, Number, Numbers, Verdict, together
from personafl_papers.tables.measures import Runs
from personafl_papers.tables.table import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
SMALLEST = 1e-300
"""A p of 0 would have no logarithm."""


def paired_tests(runs: Runs, rows: Mapping[str, str], candidates: Sequence[str]) -> dict[str, dict[str, Number]]:
    """Wilcoxon's test of each candidate against each other method, over the clients of all seeds in the last round.

    For each row "CANDIDATE − this" is the mean difference in percentage points, with a value for each seed, and "−log₁₀
    p, CANDIDATE" is of the two-sided p after Holm's correction for all tests of the table.
    """
    scores = {row: _by_seed(runs[method]) for method, row in rows.items() if runs.get(method)}
    out: dict[str, dict[str, Number]] = {}
    places, raw = [], []
    for candidate in (row for row in candidates if row in scores):
        for other in (row for row in scores if row not in candidates):
            seeds = [seed for seed in scores[candidate] if seed in scores[other]]
            if not seeds:
                continue
            gaps = [scores[candidate][seed] - scores[other][seed] for seed in seeds]
            out.setdefault(other, {})[f"{candidate} − this"] = number([float(np.nanmean(gap)) for gap in gaps], 100)
            pooled = np.concatenate(gaps)
            places.append((other, f"−log₁₀ p, {candidate}"))
            raw.append(wilcoxon(pooled, np.zeros_like(pooled)).p)
    for (other, column), p in zip(places, holm(raw), strict=True):
        out[other][column] = number([abs(math.log10(max(p, SMALLEST)))])
    return out


def distribution(runs: Runs, rows: Mapping[str, str]) -> dict[str, Any]:
    """Figure 2: how many clients have which accuracy in the last round, of all seeds; bins in percent."""
    edges = np.linspace(0, 100, 21)
    counts = {}
    for method, row in rows.items():
        if runs.get(method):
            values = np.concatenate([*_by_seed(runs[method]).values()])
            counts[row] = np.histogram(100 * values[~np.isnan(values)], edges)[0].tolist()
    return {"edges": edges.tolist(), "counts": counts}


def outperforms(part: str, candidate: str, others: Sequence[str], level: float) -> Check:
    """Check that a method's clients are better off than with each of the others, p below `level` every time."""

    def check(numbers: Numbers) -> Finding:
        verdicts: list[Verdict] = []
        listed = []
        for other in others:
            found = numbers[part][other]
            gap, power = found[f"{candidate} − this"].mean, found[f"−log₁₀ p, {candidate}"].mean
            significant = power > -math.log10(level)
            verdicts.append("does not hold" if gap <= 0 else "holds" if significant else "not decided")
            listed.append(f"{other} {gap:+.2f} (p {10**-power:.1g})")
        return Finding(together(verdicts), f"{candidate} − other, mean over clients: {', '.join(listed)}")

    return check


def collaboration(runs: Runs, rows: Mapping[str, str]) -> tuple[dict[str, dict[str, Number]], dict[str, Any]]:
    """How much of the weight for others stays inside a client's group; and the matrices of the first seed."""
    numbers: dict[str, dict[str, Number]] = {}
    kept: dict[str, Any] = {}
    for method in ("fedamp", "heurfedamp"):
        if not runs.get(method):
            continue
        found = [weights_of(run) for run in runs[method].values()]
        inside, between, share = zip(*(blocks(*one) for one in found), strict=True)
        numbers[rows[method]] = {
            "inside, %": number(share, 100),
            "mean inside, %": number(inside, 100),
            "mean between, %": number(between, 100),
        }
        weights, groups = found[0]
        kept[rows[method]] = {"weights": np.round(weights, 5).tolist(), "groups": groups}
    return numbers, kept


def _by_seed(runs: Mapping[int, Run]) -> dict[int, Floats]:
    """Each client's accuracy after the last round."""
    found = {seed: accuracy_of(run) for seed, run in runs.items()}
    return {seed: one for seed, one in found.items() if one is not None}


def weights_of(run: Run) -> tuple[Floats, list[str]]:
    """ξ after the last round, a row for each client; and the clients' groups."""
    last = max((run.path / "evaluations").glob("*.safetensors"))
    return load_file(last)["weights"].astype(np.float64), run.clients().column("group").to_pylist()


def blocks(weights: Floats, groups: Sequence[str]) -> tuple[float, float, float]:
    """Mean weight of others in a client's group and outside of it, and the share of the former in all weight of others.

    >>> blocks(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]]), ["a", "a", "b"])
    (0.25, 0.1875, 0.4)
    """
    names = np.array(groups)
    same = names[:, None] == names
    others = ~np.eye(len(names), dtype=bool)
    inside, between = weights[same & others], weights[~same]
    return float(inside.mean()), float(between.mean()), float(inside.sum() / weights[others].sum())


def matrices(found: Mapping[str, Any]) -> Figure:
    """A picture of each matrix; lines part the groups."""
    import matplotlib
    from matplotlib.figure import Figure

    from personafl.report.figures import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4 * len(found), 3.8), layout="constrained")
        for axes, (row, one) in zip(np.atleast_1d(figure.subplots(1, len(found))), found.items(), strict=True):
            weights, groups = np.array(one["weights"]), one["groups"]
            np.fill_diagonal(weights, np.nan)
            image = axes.imshow(weights, cmap="Blues", vmin=0, interpolation="nearest")
            for edge in (i for i in range(1, len(groups)) if groups[i] != groups[i - 1]):
                axes.axhline(edge - 0.5, color="0.6", linewidth=0.6)
                axes.axvline(edge - 0.5, color="0.6", linewidth=0.6)
            axes.set(title=row, xlabel="client j", ylabel="client i")
            axes.grid(False)
            figure.colorbar(image, ax=axes, shrink=0.85)
    return figure
