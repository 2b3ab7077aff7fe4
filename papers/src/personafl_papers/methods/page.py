"""docs/methods-study.md: what the study found, from its lines and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from personafl_papers.methods.federations import FEDERATIONS
from personafl_papers.methods.findings import CONTROLS, Findings, mean
from personafl_papers.methods.grids import GRIDS, TRIES, grid_of
from personafl_papers.methods.outcomes import Outcome
from personafl_papers.methods.words import ACCURACY, COSTS, FAILED, GLOBAL, HOW, cannot, opening, p_text, says


def page(found: Findings, picture: str) -> str:
    """The page, with the picture where `picture` says it is."""
    parts = [opening(found, picture), *says(found), cannot(found)]
    parts += [*_accuracies(found), *_failures(found), *_costs(found), *_globals(found), *_how(found)]
    return "\n".join(parts)


def _head(columns: Sequence[str], left: int) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * left}{'--:|' * (len(columns) - left)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accuracies(found: Findings) -> Iterator[str]:
    yield f"## Accuracy\n\n{ACCURACY}"
    best = [max((o.accuracy for o in of.values() if o.accuracies), default=np.nan) for of in found.outcomes.values()]
    yield _head(["method", "mean rank", *found.outcomes], left=1)
    for method in (*found.order, *(m for m in found.methods if m not in found.ranked)):
        rank = f"{found.means[method]:.1f}" if method in found.means else "not ranked"
        yield _row([f"`{method}`", rank, *map(_accuracy, found.of(method), best)])
    yield ""


def _accuracy(outcome: Outcome, best: float) -> str:
    if outcome.status != "done":
        return outcome.status
    text = f"{100 * outcome.accuracy:.1f}" + (f" ± {100 * outcome.spread:.1f}" if np.isfinite(outcome.spread) else "")
    return f"**{text}**" if outcome.accuracy == best else text


def _failures(found: Findings) -> Iterator[str]:
    said: dict[tuple[str, str, str], list[str]] = {}
    for federation, of in found.outcomes.items():
        for method, outcome in of.items():
            if outcome.status in ("refused", "failed"):
                said.setdefault((method, outcome.status, outcome.why), []).append(federation)
    for (method, status, why), federations in said.items():
        yield f"- `{method}` {status} on {', '.join(federations)}: {why}"
    if said:
        yield FAILED


def _costs(found: Findings) -> Iterator[str]:
    yield f"## Against training alone, and at what cost\n\n{COSTS}"
    yield _head(
        ["method", "mean rank", "worse off", "at most", "p, alone", "p, FedAvg", "gradients", "seconds"], left=1
    )
    base = [of["fedavg"].gradients if "fedavg" in of else np.nan for of in found.outcomes.values()]
    for method in found.order:
        shares = [share for o in found.of(method) if np.isfinite(share := o.worse_off)]
        worse = [f"{mean(shares):.0%}", f"{max(shares):.0%}"] if shares else ["", ""]
        tests = [p_text(found.p[control][method]) if control in found.p else "" for control in CONTROLS]
        work = mean([o.gradients / b for o, b in zip(found.of(method), base, strict=True)])
        costs = [_number(work), _number(mean([o.seconds for o in found.of(method)]))]
        yield _row([f"`{method}`", f"{found.means[method]:.1f}", *worse, *tests, *costs])
    yield ""


def _globals(found: Findings) -> Iterator[str]:
    having = [m for m in found.order if any(o.global_accuracies for o in found.of(m))]
    if not having:
        return
    yield f"## Global models\n\n{GLOBAL}"
    yield _head(["method", *found.outcomes], left=1)
    for method in having:
        shared = [mean(o.global_accuracies) for o in found.of(method)]
        yield _row([f"`{method}`", *(_number(100 * value) for value in shared)])
    yield ""


def _how(found: Findings) -> Iterator[str]:
    yield "## How it was done\n"
    yield _head(["federation", "data, and who has it", "clients"], left=3)
    for name in found.outcomes:
        yield _row([name, FEDERATIONS[name].about, found.clients.get(name, "")])
    yield ""
    for name, why in found.left_out.items():
        yield f"- {name} is left out: {why}"
    yield HOW.format(tries=TRIES)
    yield _head(["method", "tries"], left=2)
    for method in sorted(found.methods):
        note = "" if method in GRIDS else " (no grid of its own)"
        yield _row([f"`{method}`", _tries(grid_of(method)) + note])
    yield ""


def _number(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else ""


def _tries(grid: Mapping[str, Sequence[Any]]) -> str:
    """What is tried, in words.

    >>> _tries({"local.lr": [0.1, 0.3], "algorithm.mu": [0.01, 0.1]})
    'lr 0.1, 0.3 × mu 0.01, 0.1'
    """
    return " × ".join(f"{key.partition('.')[2]} {', '.join(map(str, values))}" for key, values in grid.items())
