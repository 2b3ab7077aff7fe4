"""The models that clients choose from, and what these say of every validation and test sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from personafl.engines import Engine
from personafl.engines.base import Split
from personafl.engines.measuring import labels_of
from personafl.fitting.candidates import REFERENCES, Candidate, Outcome
from personafl.fitting.choice import Floats
from personafl.kernels.losses import couples_samples
from personafl.kernels.task import Task
from personafl.report.fits import GLOBAL
from personafl.runs.run import Run
from personafl.states import Ints
from personafl.storage.reading import open_tensors, parsed, read_tensors
from personafl.tasks import LearningTask

MOST = 6
"""Finalists, the references included."""
LIKELIHOODS = ("cross_entropy", "binary_cross_entropy", "hazard_likelihood")
"""Losses that are the negative logarithm of a probability."""


@dataclass(frozen=True)
class Finalist:
    """A model of a finished run: the clients' personalized ones, or the global one for everybody.

    Attributes
    ----------
    who
        `personal` or `global`.
    outcome, score
        The training that was chosen, and its score on validation data; more is better.
    again
        That of training it once more, on the validation data as well, where there was time for it.
    """

    candidate: Candidate
    outcome: Outcome
    who: str
    score: float
    label: str
    again: Outcome | None = None

    @property
    def used(self) -> Outcome:
        """The training whose models clients get."""
        return self.again or self.outcome


def finalists(candidates: Sequence[Candidate], most: int = MOST) -> list[Finalist]:
    """The models to choose from: the references, the best of all, the best of other methods, then the next best.

    Of a method it is its personalized models or its global one, whichever is better. Names are those of the methods,
    and `one model` is FedAvg's global one.
    """
    models = [model for candidate in candidates for model in _models(candidate)]
    models.sort(key=lambda m: (-m.score, m.candidate.number))
    wanted = [("separate", "personal"), ("fedavg", "global"), ("fedavg-ft", "personal")]
    chosen = [m for want in wanted if (m := next((m for m in models if (m.candidate.method, m.who) == want), None))]
    chosen += [model for model in models[:1] if model not in chosen]  # so that no choice is worse than the best of all
    for once in (True, False):  # first the best of each method
        for model in models:
            known = _kind(model) in map(_kind, chosen) if once else model in chosen
            other = not once and model.who == "global" and model.candidate.method != "fedavg"
            if len(chosen) < most and not known and not other:
                chosen.append(model)
    labels: list[str] = []
    out = []
    for model in chosen:
        label, count = (
            model.label,
            sum(other == model.label or other.startswith(f"{model.label} (") for other in labels),
        )
        labels.append(f"{label} ({count + 1})" if count else label)
        out.append(Finalist(model.candidate, model.outcome, model.who, model.score, labels[-1]))
    return out


def contenders(candidates: Sequence[Candidate]) -> list[Outcome]:
    """The trainings of which finalists can come, now or when more has been trained.

    As scores stay as they are, those are the best few personalized and global models of each method.
    """
    by_kind: dict[tuple[str, str], list[Finalist]] = {}
    for model in (model for candidate in candidates for model in _models(candidate)):
        by_kind.setdefault((model.candidate.method, model.who), []).append(model)
    return [m.outcome for alike in by_kind.values() for m in sorted(alike, key=lambda m: -m.score)[:MOST]]


def _models(candidate: Candidate) -> list[Finalist]:
    """The best personalized and the best global models that a candidate has, at whichever length of training."""
    found = []
    for who, key in (("personal", "score"), ("global", "global_score")):
        known = [o for o in candidate.outcomes.values() if o.folder and np.isfinite(getattr(o, key))]
        if not known:
            continue
        best = max(known, key=lambda o: (getattr(o, key), -o.rounds))
        found.append(Finalist(candidate, best, who, float(getattr(best, key)), label(candidate.method, who)))
    return found


def _kind(model: Finalist) -> tuple[str, str]:
    """Models that are alike: those of a method; FedAvg's personalized ones are not like its global one."""
    return model.candidate.method, model.who if model.candidate.method == "fedavg" else ""


def label(method: str, who: str) -> str:
    """How a finalist is called.

    >>> label("separate", "personal"), label("fedavg", "global"), label("ditto", "personal"), label("ditto", "global")
    ('alone', 'one model', 'ditto', 'ditto, global')
    """
    if who == "global":
        return "one model" if method == "fedavg" else f"{method}{GLOBAL}"
    return "alone" if method == REFERENCES[0] else method


def theta_of(run: Run, who: str, ids: Sequence[str]) -> Tensor:
    """The parameters of these clients' models (K, P), or of the one for everybody (P,), as engines take them."""
    task = run.task
    if who == "global":
        return task.vector(read_tensors(run.folder.models / "global.safetensors"))
    with open_tensors(path := run.folder.models / "personal.safetensors") as file:
        listed = parsed((file.metadata() or {}).get("clients", "[]"), list[str], path)
        known = {client: row for row, client in enumerate(listed)}
        names = [*task.names, *(n for n in task.statistic_names if n in set(file.keys()))]
        rows = torch.tensor([known.get(client, -1) for client in ids])
        parts = []
        for name in names:
            tensor = file.get_tensor(name)
            parts.append(tensor[rows.clamp(min=0)].reshape(len(ids), -1).float())
    theta = torch.cat(parts, 1)
    if (rows < 0).any():  # never active, in a large federation: they share a model
        theta[rows < 0] = task.vector(read_tensors(run.folder.models / "others.safetensors"))
    return theta


def outputs_of(engine: Engine, theta: Tensor, split: Split) -> Tensor:
    """What a model says of every sample of a split, client after client."""
    ids: Ints = np.arange(len(engine.federation))
    found = engine.outputs(theta, ids, split)
    return found.float().cpu()


def log_likelihoods(task: Task, outputs: Tensor, y: Tensor, owner: Ints, clients: int) -> Floats:
    """The logarithm of the probability of each sample under each of F models (N, F), up to a constant for each.

    A loss that is no likelihood is taken for one by a scale that suits the best of the models: twice its mean loss,
    which makes a squared error that of a normal density. Where a loss couples samples, a client's is shared out evenly.
    """
    found = np.stack([losses(task.kind, each, y, owner, clients) for each in outputs], 1)
    if task.kind.loss_name in LIKELIHOODS or not len(found):
        return -found
    return np.asarray(-found / max(2 * float(found.mean(0).min()), np.finfo(float).tiny))


def losses(kind: LearningTask, outputs: Tensor, y: Tensor, owner: Ints, clients: int) -> Floats:
    """The loss of each sample (N,)."""
    objective: Any = kind.objective
    if not couples_samples(objective):
        found = objective(outputs, y)
        values = found[0] if isinstance(found, tuple) else found
        return np.asarray(np.nan_to_num(values.double().numpy(), nan=1e6, posinf=1e6))
    out = np.zeros(len(owner))
    for client in np.unique(owner):
        mine = np.flatnonzero(owner == client)
        at = torch.from_numpy(mine)
        out[mine] = float(objective(outputs[at], y[at], weight=torch.ones(len(mine))))
    return out


def owners(engine: Engine, split: Split) -> Ints:
    """The client of each sample of a split."""
    sizes = engine.federation.sizes(split)
    return np.repeat(np.arange(len(sizes)), sizes)


def labels(engine: Engine, split: Split) -> Tensor:
    """The labels of a split, client after client."""
    return labels_of(engine, np.arange(len(engine.federation)), split)
