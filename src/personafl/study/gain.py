"""Who profits from the federation, who mainly gives, and for whom joining is not worth it.

Self-FL estimates for each client its own uncertainty σ_m² and how much the others know of its parameter. The
personalized federated learning gain is the factor by which the others reduce the client's uncertainty,

    GAIN_m = v_m^(L) / v_m^(FL) = 1 + σ_m² · (precision of what the others know)

with that precision S_m (`posterior="paper"`) or 1/(σ0² + 1/S_m) (`"exact"`). GAIN near 1: the client learns as well
alone. A client *gives* if it gains little but has a larger weight 1/(σ0² + σ_m²) than half of the clients.

All of this is an estimate from how models moved, not a measurement: `gain_check.py` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personafl.errors import RunError
from personafl.runs.run import Run
from personafl.study.values import floats

PROFITS, GIVES, ALONE, UNKNOWN = "profits", "gives", "as well alone", "not known yet"


@dataclass(frozen=True)
class Gains:
    """One entry per client, in the order of the run."""

    clients: list[str]
    samples: NDArray[np.int64]
    sigma2: NDArray[np.float64]
    gain: NDArray[np.float64]
    weight: NDArray[np.float64]
    steps: NDArray[np.int64]
    verdict: list[str]

    def count(self, verdict: str) -> int:
        """How many clients have a verdict."""
        return sum(v == verdict for v in self.verdict)


def gains(run: Run, threshold: float = 1.1) -> Gains:
    """Read the last evaluation of a Self-FL run; a client profits if its GAIN is at least `threshold`."""
    table = run.clients()
    if "gain" not in table.column_names:
        name = run.manifest["algorithm"]["name"]
        raise RunError(f"{run.path} was trained by {name}, which does not estimate GAIN: train with selffl")
    for column in ("weight", "sigma2", "steps"):
        if column not in table.column_names:
            raise RunError(f"{run.path / 'clients.parquet'}: column {column!r} is missing beside 'gain'")

    gain, weight = floats(table, "gain"), floats(table, "weight")
    known = np.isfinite(gain)
    middle = float(np.median(weight[known])) if known.any() else 0.0
    verdict = [
        UNKNOWN if not ok else PROFITS if g >= threshold else GIVES if w > middle else ALONE
        for ok, g, w in zip(known, gain, weight, strict=True)
    ]
    samples, steps = floats(table, "n_train").astype(np.int64), floats(table, "steps").astype(np.int64)
    return Gains(table.column("client").to_pylist(), samples, floats(table, "sigma2"), gain, weight, steps, verdict)


def sentence(found: Gains, threshold: float) -> str:
    """The answer in words."""
    known = found.gain[np.isfinite(found.gain)]
    if not len(known):
        return "No client was active often enough to know its uncertainty (twice at least): train for more rounds."
    profit = f"{found.count(PROFITS)} of {len(found.gain)} clients profit (GAIN at least {threshold:g})"
    parts = [
        f"By Self-FL's estimate {profit}",
        f"{found.count(GIVES)} mainly give",
        f"{found.count(ALONE)} would do as well alone",
    ]
    if found.count(UNKNOWN):
        parts.append(f"{found.count(UNKNOWN)} were active too seldom to tell")
    return f"{', '.join(parts)}. The median GAIN is {np.median(known):.3g}, the largest {known.max():.3g}."


def plot(found: Gains, path: Path) -> None:
    """GAIN of every client: its distribution, and against the client's number of samples."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {PROFITS: "#2680c2", GIVES: "#27ab83", ALONE: "#9aa5b1"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    known = np.isfinite(found.gain)
    left.hist(found.gain[known], bins=min(40, max(5, int(known.sum()) // 5)), color="#2680c2")
    left.axvline(1.0, color="#d64545", linewidth=1)
    left.set(title="GAIN of the clients", xlabel="GAIN (1: as well alone)", ylabel="clients")
    for verdict, colour in colours.items():
        rows = np.array([v == verdict for v in found.verdict])
        right.scatter(found.samples[rows], found.gain[rows], s=18, color=colour, label=f"{verdict} ({rows.sum()})")
    right.set(title="who profits", xlabel="training samples", ylabel="GAIN", xscale="log" if known.any() else "linear")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
