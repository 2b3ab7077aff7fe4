"""Whether a run's models reveal which samples they were trained on: membership inference.

Two attacks, each on the personalized models, on what clients last sent (where that is a whole model) and on the model
that serves everybody:

`loss`
    A sample with a small loss is taken for a member: needs the model and nothing else.
`shadows`
    As LiRA (Carlini et al.: Membership inference attacks from first principles, 2022): the run is trained again, with
    other samples of the clients in and out. For each sample, how likely is its loss if it was in, and if it was out?
    Normal distributions of the logit of its probability, with one variance for all samples, as few shadows want.

Members are the run's training samples, others its test samples; both are used for nothing but this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from personafl.config import parse
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.files import write_text
from personafl.metrics.inputs import Floats
from personafl.metrics.membership import Estimate, auc, proven_epsilon, rate_at, told_right
from personafl.registry import checked, is_class_path
from personafl.runs.run import Run
from personafl.settings import ENGINE_NAMES, EngineSettings, Local, Schedule
from personafl.storage import checkpoint
from personafl.storage.reading import read_json
from personafl.study.shadows import Observed, Target, observe, shadow
from personafl.study.values import floats
from personafl.training.job import Job
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust

FILE = "audit.json"
LEAST = 10
"""Members and others that a client must have to be reported separately."""
RATES = (0.01, 0.001)
LEAST_SHADOWS = 4


@dataclass(frozen=True)
class Attack:
    """What one attack on one kind of model achieves.

    Attributes
    ----------
    told_right
        The share sorted rightly, of as many members as others.
    rates
        By the share of others that are taken for members: the share of members that are found.
    proven
        The ε that this proves at least.
    epsilon
        The ε that was promised, where the promise covers what is attacked.
    clients
        AUC by client, for those with enough samples.
    """

    target: Target
    attack: str
    members: int
    others: int
    auc: Estimate
    told_right: float
    rates: dict[str, Estimate]
    proven: float
    epsilon: float | None
    clients: dict[str, Estimate]


@dataclass(frozen=True)
class Audit:
    """What `audit` finds; `reproduced` says whether training again gave the models that are in the run folder."""

    attacks: tuple[Attack, ...]
    shadows: int
    seed: int
    reproduced: bool

    def worst(self, target: Target) -> Attack | None:
        """The most successful attack on a kind of model."""
        found = [attack for attack in self.attacks if attack.target == target]
        return max(found, key=lambda attack: attack.auc.value, default=None)

    def table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "attacks": [asdict(attack) for attack in self.attacks]}


def audit(
    run: Run,
    federation: Federation | None = None,
    *,
    shadows: int = 16,
    seed: int = 0,
    tell: Callable[[int], None] = lambda done: None,
) -> Audit:
    """Train a run again, with and without samples, and try to tell its training samples from others.

    The result is also written to `audit.json` in the run folder, where the report finds it.

    Parameters
    ----------
    run
        A finished run that was trained in one place (not by Flower's sites).
    federation
        Its data; left out, what its config says.
    shadows
        How many trainings with other samples; 0 for the attack by loss alone. Few make the attack weaker than it could
        be: 16 to 64 are usual.
    seed
        What the samples of shadows follow from.
    tell
        Called after each training with how many are done.

    Examples
    --------
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.IID(clients=3))
    >>> run = pf.train(fed, torch.nn.Linear(64, 10), rounds=1, local=pf.Local(steps=1), progress=False, engine="loop")
    >>> found = audit(run, fed, shadows=0)
    >>> [attack.target for attack in found.attacks], found.reproduced
    (['personal', 'update', 'global'], True)
    """
    enough = shadows == 0 or shadows >= LEAST_SHADOWS
    if isinstance(shadows, bool) or not isinstance(shadows, int) or not enough:
        raise ConfigError(f"shadows = {shadows!r}: must be at least {LEAST_SHADOWS}, or 0 for none")
    job = job_of(run, federation)
    if not (job.federation.sizes("test").any() and job.federation.sizes("train").any()):
        raise RunError(f"{run.path}: no client has test samples, and an audit compares training samples with these")
    target = observe(job)
    tell(1)
    others = []
    for number in range(shadows):
        others.append(shadow(job, seed, number))
        tell(number + 2)
    found = Audit(tuple(_attacks(run, job, target, others)), shadows, seed, _reproduced(run, target))
    write_text(run.path / FILE, json.dumps(found.table(), indent=1))
    return found


def read_audit(run: Run) -> dict[str, Any] | None:
    """What an audit left in a run folder, checked; None where there was none."""
    path = run.path / FILE
    if not path.exists():
        return None
    try:
        made: Audit = checked(Audit, "", read_json(path, dict[str, Any]))
    except ConfigError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    for attack in made.attacks:
        found = (attack.auc, *attack.rates.values(), *attack.clients.values())
        shares = [attack.told_right, *(value for one in found for value in (one.value, one.low, one.high))]
        known = math.isfinite(attack.proven) and (attack.epsilon is None or math.isfinite(attack.epsilon))
        if not known or not all(0 <= share <= 1 for share in shares):
            raise RunError(f"{path} has shares that are not between 0 and 1, or an ε that is no number: audit again")
    return {**made.table(), "words": words(made)}


def words(found: Audit) -> list[str]:
    """The result for people who are not statisticians."""
    out = []
    for target, seen in _SEEN.items():
        attack = found.worst(target)
        if attack is None:
            continue
        right = round(100 * attack.told_right)
        said = f"Of 100 people, half of them in the training data, an attacker who sees {seen} sorts {right} rightly; "
        said += "guessing gets 50." if right > 50 else "guessing gets 50: no better."
        if attack.auc.low <= 0.5:
            said += " That is not told from chance."
        rate = attack.rates.get("0.01")
        if rate is not None and attack.auc.low > 0.5:
            said += (
                f" If no more than 1 of 100 outsiders may be accused, {100 * rate.value:.0f} of 100 people in the data "
                f"are found ({100 * rate.low:.0f} to {100 * rate.high:.0f})."
            )
        out.append(said)
    if not found.reproduced:
        out.append("Training again did not give the run's own models: this is about a run of the same settings.")
    return out


_SEEN: dict[Target, str] = {
    "personal": "a client's personalized model",
    "update": "what a client sends",
    "global": "the model that serves everybody",
}


# --- the job of a run


def job_of(run: Run, federation: Federation | None = None) -> Job:
    """The job of a run, to train it again: the same data, initial weights and settings."""
    manifest = run.manifest
    resolved = manifest["resolved"]
    if resolved.get("engine") == "flower":
        raise RunError(
            f"{run.path} was trained by sites, whose data is with them: an audit needs the data in one place"
        )
    if not run.complete:
        raise RunError(f"{run.path} is not finished: continue it first")
    federation = _data(run) if federation is None else federation
    if federation.fingerprint != resolved.get("fingerprint"):
        raise RunError(
            f"{run.path} was trained on other data than this (fingerprint {resolved.get('fingerprint')}): give its "
            "federation, pf.audit(run, federation) in Python"
        )
    found = checkpoint.latest(run.folder.checkpoints, clients=False)
    if found is None:
        raise RunError(f"{run.path} has no checkpoint, and so no initial weights")
    task = run.task.copy()
    task.theta0 = found.tensors["theta0"].clone()
    engine = resolved.get("engine")
    schedule = {f.name: manifest[f.name] for f in fields(Schedule) if f.name in manifest}
    return Job(
        federation, task, run.algorithm, checked(Schedule, "", schedule), checked(Local, "local", manifest["local"]),
        EngineSettings(engine if engine in ENGINE_NAMES else "auto", resolved.get("threads")),
        privacy=checked(Privacy | None, "privacy", manifest.get("privacy")), seed=int(manifest["seed"]),
        robust=checked(Robust | None, "robust", manifest.get("robust")),
    )  # fmt: skip


def _data(run: Run) -> Federation:
    """The data that a run folder names, where it is one of personafl's sources: nothing that it names is imported."""
    keys = ("seed", "splits", "splitting", "data", "partition")
    tables = {key: run.manifest[key] for key in keys if key in run.manifest}
    give = f"{run.path}: its data was made in Python: give it, pf.audit(run, federation)"
    named = [table for table in tables.values() if isinstance(table, dict)]
    if "backbone" in run.manifest or any("class" in t or is_class_path(str(t.get("name", ""))) for t in named):
        raise RunError(give)
    try:
        return parse(tables).federation()
    except ConfigError as error:
        raise RunError(f"{give} ({error})") from error


def _reproduced(run: Run, target: Observed) -> bool:
    """Whether the first client's model is that of the run folder, up to the last digits."""
    ours = run.task.state_dict(target.first)
    with run._models("personal") as file:
        theirs = {name: file.get_slice(name)[0] for name in list(file.keys())}
    same = ours.keys() == theirs.keys()
    return same and all(torch.allclose(ours[n].float(), theirs[n].float(), rtol=1e-2, atol=1e-4) for n in ours)


# --- the attacks


def _attacks(run: Run, job: Job, target: Observed, shadows: Sequence[Observed]) -> list[Attack]:
    owner = np.zeros(len(job.federation.y), np.int64)
    pool = np.zeros(len(owner), np.bool_)
    for split in ("train", "test"):
        for k, (start, size) in enumerate(zip(job.federation.starts(split), job.federation.sizes(split), strict=True)):
            owner[start : start + size], pool[start : start + size] = k, True
    made = []
    for kind, losses in target.losses.items():
        scores = {"loss": -losses}
        if shadows and all(kind in one.losses for one in shadows):
            scores["shadows"] = likelihood_ratio(kind, target, shadows, job.task.classification)
        promised = _promised(run, kind)
        made += [_measured(job, kind, name, score, target, owner, pool, promised) for name, score in scores.items()]
    return made


def likelihood_ratio(kind: Target, target: Observed, shadows: Sequence[Observed], classification: bool) -> Floats:
    """Each sample's log likelihood ratio: of its score as a member against as none; NaN where unknown."""
    found = np.stack([_score(one.losses[kind], classification) for one in shadows])
    inside = np.stack([one.inside for one in shadows])
    score = _score(target.losses[kind], classification)
    out = np.zeros_like(score)
    for sign, mask in ((1.0, inside), (-1.0, ~inside)):
        values = np.where(mask, found, np.nan)
        known = np.isfinite(values).sum(0)
        mean = np.where(known > 0, np.nansum(values, 0) / np.maximum(known, 1), np.nan)
        freedom = max(int(np.maximum(known - 1, 0).sum()), 1)
        variance = max(float(np.nansum(np.square(values - mean)) / freedom), 1e-12)
        out += sign * (-0.5 * np.square(score - mean) / variance - 0.5 * np.log(variance))
    return out


def _score(losses: Floats, classification: bool) -> Floats:
    """The logit of the probability of the label, which is nearly normal over trainings; else the negative loss."""
    if not classification:
        return -losses
    losses = np.clip(losses, 1e-12, 700)
    return np.asarray(-losses - np.log(-np.expm1(-losses)))


def _measured(
    job: Job, kind: Target, name: str, score: Floats, target: Observed, owner: Any, pool: Any, promised: float | None
) -> Attack:
    known = pool & np.isfinite(score)
    members, others = score[known & target.inside], score[known & ~target.inside]
    if not len(members) or not len(others):
        raise RunError(f"an audit of {kind} models needs both training and test samples of clients that were active")
    clients = {}
    for k, client in enumerate(job.federation.ids):
        mine, theirs = (score[known & (owner == k) & inside] for inside in (target.inside, ~target.inside))
        if min(len(mine), len(theirs)) >= LEAST:
            clients[client] = auc(mine, theirs)
    rates = {f"{rate:g}": rate_at(members, others, rate) for rate in RATES}
    delta = 0.0 if job.privacy is None else job.privacy.delta
    return Attack(
        kind, name, len(members), len(others), auc(members, others), told_right(members, others),
        {rate: found for rate, found in rates.items() if found is not None}, proven_epsilon(members, others, delta),
        promised, clients,
    )  # fmt: skip


def _promised(run: Run, kind: Target) -> float | None:
    """The largest ε of a client, where the run's `[privacy]` covers this kind of model."""
    privacy = run.manifest.get("privacy")
    if privacy is None or not privacy.get("noise"):
        return None
    covers: dict[str, tuple[Target, ...]] = {"sample": ("personal", "update", "global"), "server": ("global",)}
    place = "sample" if privacy.get("unit") == "sample" else str(privacy.get("noise_at", "clients"))
    if kind not in covers.get(place, ("update", "global")):
        return None
    spent = floats(run.clients(), "epsilon")
    return float(np.nanmax(spent)) if np.isfinite(spent).any() else None
