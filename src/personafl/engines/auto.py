"""Which engine, and how many threads: for this model, this data and this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from personafl.engines.base import Engine
from personafl.engines.candidates import ENGINES as ENGINES
from personafl.engines.candidates import TRIAL_GRADIENTS, Name, RunSteps
from personafl.engines.candidates import some_samples as some_samples
from personafl.engines.machine import cores, processor, torch_threads
from personafl.engines.prediction import Shapes
from personafl.engines.trials import UNKNOWN, Clock, Trials
from personafl.errors import ConfigError, ModelError
from personafl.federation import Federation
from personafl.inputs import Inputs, dtype_of, each_input, shape_of
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local
from personafl.storage.cache import keep_note, note
from personafl.version import __version__

VERSION = 2
"""Of what is remembered; to be raised when engines are chosen in another way."""


@dataclass(frozen=True)
class Choice:
    """An engine's name and thread count, and why: what was seen of each candidate, or a reason in words."""

    engine: str
    threads: int
    reason: str


def make_engine(
    settings: EngineSettings,
    task: Task,
    federation: Federation,
    local: Local,
    seed: int,
    cohort: int = 16,
    rounds: int = 0,
) -> tuple[Engine, Choice]:
    """Build the engine that is asked for; `auto` takes the one that will be the fastest, see `choose`.

    Parameters
    ----------
    settings
        Its name, and what it may use.
    cohort, rounds
        The run that it is for: choosing may cost a small share of it. Left out, it is short.

    Raises
    ------
    ModelError
        `stacked` is asked for by name and the model cannot be stacked.
    """
    name, device = settings.name, settings.device
    task.precision = settings.precision
    run = RunSteps(settings, task, federation, local, seed, cohort, rounds)
    x, y = _two_samples(federation, device)
    if name not in (*ENGINES, "auto"):
        raise ConfigError(f"engine = {name!r}: known engines are auto, {', '.join(ENGINES)}")
    with torch_threads(1):  # on a busy machine, threads that wait for each other take seconds
        task.check(x, y)
    why_not = run.why_not() if name in ("stacked", "threaded") else None
    if why_not is not None:
        raise ModelError(
            f"{type(task.template).__name__} cannot run on the {name} engine ({why_not}): use engine = 'loop'"
        )
    if name == "auto":
        choice = choose(run)
    else:
        threads = ENGINES[name].default_threads if settings.threads is None else settings.threads
        choice = Choice(name, threads, "asked for")
    return run.engine(choice.engine, choice.threads), choice


def _two_samples(federation: Federation, device: str) -> tuple[Inputs, Tensor]:
    """One of them with the largest label: a model may have too few outputs for that one."""
    y = federation.y
    largest = int(y.flatten(1).amax(1).argmax() if y.dim() > 1 else y.argmax())
    which = torch.tensor(sorted({0, largest or min(1, len(y) - 1)}))
    return each_input(lambda part: part[which].to(device), federation.x), y[which].to(device)


def choose(run: RunSteps, clock: Clock | None = None) -> Choice:
    """The engine and number of threads for a run: remembered, predicted from shapes, or timed, in this order."""
    known = _remembered(run)
    if known is not None:
        return known
    clock = clock or Clock(waits=run.settings.device != "cpu")
    tried = Trials([], len(run.clients), run.total, clock)  # what follows counts for the budget
    shapes = run.shapes()
    left_out = {name: why for name in run.names if (why := _untimed(run, shapes, name))}
    left = [name for name in run.names if name not in left_out]
    words = "".join(f"; {engine} with {threads} threads: {why}" for (engine, threads), why in left_out.items())
    short = _too_short(run, shapes, left)
    if len(left) == 1 or short:
        engine, threads = shapes.best(left)
        return Choice(engine, threads, f"{engine} with {threads} threads: by shapes{short}{words}")
    tried.candidates, tried.estimate = [run.candidate(*name) for name in left], shapes.loop
    best = tried.fastest()
    choice = Choice(best.name, best.threads, tried.reason() + words)
    if not tried.disturbed:
        keep_note("engine", _key(run), asdict(choice) | {"steps": None if tried.whole else run.total})
    return choice


def _untimed(run: RunSteps, shapes: Shapes, name: Name) -> str | None:
    """Why a candidate need not be timed; how many threads there are is no question where that is asked for."""
    engine, threads = name
    if run.settings.device != "cpu":  # what is predicted was measured on processors
        return None
    if run.settings.threads is not None:
        return shapes.untimed(engine, 1)
    return shapes.untimed(engine, threads, max((k for name, k in run.names if name == "threaded"), default=1))


def _too_short(run: RunSteps, shapes: Shapes, names: list[Name]) -> str:
    """Why the run cannot wait for a contest, or nothing: the first step of each candidate must be within the budget."""
    unknown = 0 if shapes.stacks is not None or {name for name, _ in names} == {"loop"} else TRIAL_GRADIENTS
    if run.affords(1 + unknown + UNKNOWN * sum(threads for _, threads in names[1:]), shapes.loop):
        return ""
    return (
        f", a run of {run.total:.0f} steps is too short to try" if run.rounds else ", a step may take too long to try"
    )


# --- what is remembered ------------------------------------------------------------------------------------------


def _remembered(run: RunSteps) -> Choice | None:
    """The choice of an earlier run like this one, unless it was made in haste and this one has twice the time."""
    found = note("engine", _key(run))
    engine, threads, reason, steps = (found.get(name) for name in ("engine", "threads", "reason", "steps"))
    if not (isinstance(engine, str) and isinstance(threads, int) and isinstance(reason, str)):
        return None
    if (engine, threads) not in run.names:
        return None
    if isinstance(steps, int | float) and (not run.rounds or 2 * steps < run.total):
        return None
    if engine != "loop" and run.why_not() is not None:  # layers are the same, but the code between them is not
        return None
    return Choice(engine, threads, f"as in an earlier run: {reason}")


def _key(run: RunSteps) -> dict[str, Any]:
    """The model, the shape of the data, and the machine."""
    task, settings, data = run.task, run.settings, run.federation
    return {
        "version": VERSION,
        "module": [type(task.template).__qualname__, str(task.template)],
        "parameters": [[name, list(p.shape), p.requires_grad] for name, p in task.template.named_parameters()],
        "data": [str(shape_of(data.x)), str(dtype_of(data.x)), list(data.y.shape[1:])],
        "step": [len(run.clients), min(run.cohort, len(data)), run.samples, run.local.optimizer],
        "engine": [settings.memory, settings.threads, settings.device, settings.precision],
        "machine": [processor(), cores(), torch.__version__, __version__],
    }  # fmt: skip
