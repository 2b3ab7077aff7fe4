"""Equal work: every method of a comparison computes about as many gradients per client as the one that computes most.

Work is what `clients.parquet` counts: gradients of training, and those of what comes before the last evaluation
(fine-tuning, PersFL's distillation). Each method is run as configured with the first seed. The largest work is the
budget, so nobody is cut back; the others get more local steps (or epochs). A method whose clients choose their number
of steps themselves (Self-FL), or that whole steps do not bring near the budget, gets more rounds instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from personafl.runs.run import Run
from personafl.settings import Local
from personafl.study.plan import TRIES, Plan, PlannedRun

NEAR = 0.05
"""How far from the budget is near enough."""


@dataclass(frozen=True)
class Work:
    """Gradients per client of a method as configured, what was changed for equal work, and gradients then."""

    configured: float
    changed: dict[str, Any]
    gradients: float


@dataclass(frozen=True)
class EqualWork:
    """The work of each method of a comparison, and what all were to come near to."""

    budget: float
    methods: dict[str, Work]

    @property
    def apart(self) -> float:
        """By how much the method with most work exceeds the one with least."""
        known = [work.gradients for work in self.methods.values() if np.isfinite(work.gradients)]
        return max(known) / min(known) - 1 if known else np.nan

    def sentence(self) -> str:
        """What was done, in words."""
        known = [work.gradients for work in self.methods.values() if np.isfinite(work.gradients)]
        if not known:
            return "Equal work: no run tells how many gradients it computed."
        parts = [f"{m} {_changes(work)}" for m, work in self.methods.items() if work.changed]
        rounds = any("rounds" in work.changed for work in self.methods.values())
        return (
            f"Equal work: every method computed {min(known):,.0f} to {max(known):,.0f} gradients per client "
            f"({self.apart:.1%} apart)"
            + (f", with {', '.join(parts)}" if parts else "")
            + (", more rounds where more local steps do not do it" if rounds else "")
            + "."
        )


def equalize(
    planned: Plan, settings: Mapping[str, Mapping[str, Any]], runs: Callable[[Sequence[PlannedRun]], list[Run | None]]
) -> tuple[EqualWork, dict[str, dict[str, Any]]]:
    """Find settings by which all methods do equal work, with the first seed.

    Parameters
    ----------
    settings
        What a search has chosen for a method, if anything.
    runs
        Makes the runs of jobs, or finds them made; None for one that failed.

    Returns
    -------
    equal
        The work as configured; that of the comparison is not known yet.
    settings
        Of each method: what was given, and what was changed.
    """
    first = planned.seeds[0]
    jobs = {m: planned.job(m, first, settings.get(m)) for m in planned.methods}
    found = dict(zip(jobs, runs(list(jobs.values())), strict=True))
    known = {m: run for m, run in found.items() if run is not None and np.isfinite(gradients_per_client(run))}
    configured = {m: gradients_per_client(known[m]) if m in known else np.nan for m in planned.methods}
    budget = max((configured[m] for m in known), default=np.nan)
    changed: dict[str, dict[str, Any]] = {m: {} for m in planned.methods}
    for attempt in range(TRIES):
        more = {m: scaled(jobs[m], run, budget) for m, run in known.items() if attempt == 0 or _far(run, budget)}
        due = {m: {**changed[m], **own} for m, own in more.items() if own}
        jobs |= {m: planned.job(m, first, {**settings.get(m, {}), **own}) for m, own in due.items()}
        for m, made in zip(due, runs([jobs[m] for m in due]), strict=True):
            if made is None:  # as configured it worked: that will have to do
                del known[m]
            else:
                known[m], changed[m] = made, due[m]
    work = {m: Work(configured[m], changed[m], np.nan) for m in planned.methods}
    return EqualWork(budget, work), {m: {**settings.get(m, {}), **changed[m]} for m in planned.methods}


def measured(equal: EqualWork, methods: Mapping[str, Mapping[int, Run]]) -> EqualWork:
    """With the gradients that the runs of the comparison computed, a mean over seeds."""
    means = {m: [gradients_per_client(run) for run in runs.values()] for m, runs in methods.items()}
    work = {
        m: replace(known, gradients=float(np.mean(means[m])) if means.get(m) else np.nan)
        for m, known in equal.methods.items()
    }
    return replace(equal, methods=work)


def scaled(job: PlannedRun, run: Run, budget: float) -> dict[str, Any]:
    """The setting, with a dotted key, that brings a method near the budget; {} where it is the one that it has."""
    work, before = gradients_per_client(run), _gradients_before_evaluation(run)
    if work <= before:
        return {}
    factor, local = (budget - before) / (work - before), job.recipe.local
    key, now = ("local.steps", _steps(local)) if local.epochs is None else ("local.epochs", local.epochs)
    wanted = max(1, round(now * factor))
    reached = before + (work - before) * wanted / now
    if _takes_the_settings_steps(run, local) and abs(reached / budget - 1) <= NEAR:
        return {} if wanted == now else {key: wanted}
    wanted = _rounds_for(run, factor)
    return {} if wanted == job.recipe.schedule.rounds else {"rounds": wanted}


def _far(run: Run, budget: float) -> bool:
    return abs(gradients_per_client(run) / budget - 1) > NEAR


def _rounds_for(run: Run, factor: float) -> int:
    """After how many rounds training has this multiple of the run's gradients.

    A longer run begins as a shorter one does, so fewer rounds can be read off; more are as the last quarter was.
    """
    so_far = np.cumsum([float(record["gradients"]) for record in run.rounds()])
    wanted, rounds = factor * so_far[-1], len(so_far)
    if wanted <= so_far[-1]:
        return int(np.argmin(np.abs(so_far - wanted))) + 1
    recent = max(1, rounds // 4)
    each = (so_far[-1] - (so_far[-1 - recent] if recent < rounds else 0.0)) / recent
    return rounds + round(float(wanted - so_far[-1]) / max(float(each), 1.0))


def gradients_per_client(run: Run) -> float:
    """Mean over clients of the gradients that their models cost; NaN for a run that did not count them."""
    table = run.clients()
    if "gradients" not in table.column_names:
        return np.nan
    return float(np.mean(np.asarray(table.column("gradients").to_numpy(zero_copy_only=False), np.float64)))


def _gradients_before_evaluation(run: Run) -> float:
    """Per client: work that more steps or rounds do not change."""
    return float(run.rounds()[-1].get("evaluation_gradients", 0)) / len(run.clients())


def _takes_the_settings_steps(run: Run, local: Local) -> bool:
    """Whether each client took as many steps as `[local]` asks for, when it was last active."""
    table = run.clients()
    steps, samples, active = (
        np.asarray(table.column(name).to_numpy(), np.int64) for name in ("steps", "n_train", "activations")
    )
    return bool((steps == local.default_steps(samples))[active > 0].all())


def _steps(local: Local) -> int:
    return int(local.default_steps(np.ones(1, np.int64))[0])


def _changes(work: Work) -> str:
    return ", ".join(f"{key} = {value}" for key, value in work.changed.items())
