"""A site's own policy: what runs there and what leaves it, whatever the operator asks for.

`policy.toml` lies beside site.toml and is one page that somebody can read and sign. It is checked before anything runs,
and what leaves the site once more before it does (`leaving`). A refusal is one line, which the operator is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from personafl.algorithms import ALGORITHMS
from personafl.backends.flower.hours import check_windows, is_within
from personafl.backends.flower.job import JobDescription, Layout, Order, usual_task
from personafl.backends.flower.ledger import Entry
from personafl.backends.flower.pins import PinnedPlugin, code_sha256
from personafl.config import read_tables
from personafl.errors import ConfigError
from personafl.models import MODELS
from personafl.registry import Registry, checked
from personafl.settings import check
from personafl.tasks import TASKS

FILE = "policy.toml"
LIMITS = ("least_noise", "most_epsilon", "delta", "metrics", "least_batch_size", "least_steps", "least_samples",
          "most_steps", "most_parameters")  # fmt: skip
"""Keys of site.toml that a policy may have in its place."""


@dataclass(frozen=True)
class Policy:
    """What may run at a site and what may leave it. What is left out is not limited.

    Parameters
    ----------
    algorithms, models, tasks
        The names of those that the site takes part in.
    plugins
        What of other packages may run, by version and hash; with a policy nothing else of them does.
    code
        The SHA-256 of personafl's own code, as `personafl site check` shows it.
    weights
        The SHA-256 of weights that do not follow from the seed: of a backbone, of a model that adapters are to, of word
        vectors, of initial weights that the operator sends. An empty list forbids them.
    outgoing
        The arrays that may leave after training, each by its name with the most bytes that it may take.
    secure
        Whether answers leave only in runs with secure aggregation.
    hours
        Windows of local time in which the site works, see `is_within`.
    most_rounds_per_run, most_rounds
        In how many rounds the site trains, in a run and in all; one that is asked for again counts again.
    least_noise, most_epsilon, delta, metrics, least_batch_size, least_steps, least_samples, most_steps, most_parameters
        As in site.toml, see `SiteSettings`.
    """

    algorithms: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    plugins: tuple[PinnedPlugin, ...] = ()
    code: str | None = None
    weights: tuple[str, ...] | None = None
    outgoing: dict[str, int] | None = None
    secure: bool = False
    hours: tuple[str, ...] = ()
    most_rounds_per_run: int | None = None
    most_rounds: int | None = None
    least_noise: float | None = None
    most_epsilon: float | None = None
    delta: float | None = None
    metrics: bool | None = None
    least_batch_size: int | None = None
    least_steps: int | None = None
    least_samples: int | None = None
    most_steps: int | None = None
    most_parameters: int | None = None

    def __post_init__(self) -> None:
        check_windows(self.hours)
        for key, registry in (("algorithms", ALGORITHMS), ("models", MODELS), ("tasks", TASKS)):
            for name in getattr(self, key) or ():
                check(key, name, name in registry, f"among {', '.join(registry)}")
        for key in ("most_rounds_per_run", "most_rounds"):
            value = getattr(self, key)
            check(key, value, value is None or value >= 0, "at least 0")
        for name, most in (self.outgoing or {}).items():
            check(f"outgoing.{name}", most, most >= 0, "a number of bytes")

    @property
    def limits(self) -> dict[str, Any]:
        """The keys of site.toml that it has in their place."""
        return {key: getattr(self, key) for key in LIMITS if getattr(self, key) is not None}


def read_policy(path: Path) -> Policy:
    """The policy of a file."""
    if not path.is_file():
        raise ConfigError(f"there is no {path}, which site.toml names as this site's policy: nothing runs without it")
    values = read_tables(path)
    try:
        policy: Policy = checked(Policy, "", values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return policy


def check_order(
    policy: Policy, site: str, order: Order, entries: Sequence[Entry], training: bool, now: datetime | None = None
) -> None:
    """Refuse what a site's policy does not allow, before anything of it is built.

    Parameters
    ----------
    entries
        What the site has answered so far.
    training
        Whether this is about a round of training; an evaluation counts as none.
    now
        The local time; left out, that of the clock.
    """
    job = order.job
    try:
        check_hours(policy, now or datetime.now())
        check_code(policy, job)
        check_weights(policy, order)
        check_secure(policy, job)
    except ConfigError as error:
        raise ConfigError(f"site {site}: {error}") from None
    if training:
        check_rounds(policy, site, job.run, entries)


def check_hours(policy: Policy, now: datetime) -> None:
    """Refuse work outside of the site's hours."""
    if policy.hours and not is_within(policy.hours, now):
        raise ConfigError(f"it works in the hours {', '.join(policy.hours)}, here it is {now:%a %H:%M} (policy: hours)")


def check_code(policy: Policy, job: JobDescription) -> None:
    """Refuse names that are not allowed, and code that is not what was reviewed; nothing is imported for it."""
    if policy.code is not None and (here := code_sha256("personafl")) != policy.code:
        raise ConfigError(f"its personafl has the code {here}, its policy pins {policy.code} (policy: code)")
    task = {"name": usual_task(job.classes).name} if job.task is None else job.task
    for allowed, table, registry in (
        (policy.algorithms, job.algorithm, ALGORITHMS),
        (policy.models, job.model, MODELS),
        (policy.tasks, task, TASKS),
    ):
        name = str(table.get("name"))
        if allowed is not None and name not in allowed:
            raise ConfigError(
                f"its policy allows the {registry.kind}s {', '.join(allowed) or 'none'}, this run has {name!r} "
                f"(policy: {registry.kind}s)"
            )
        _check_plugin(policy, name, registry)


def _check_plugin(policy: Policy, name: str, registry: Registry) -> None:
    plugin = registry.plugins.get(name)
    if plugin is None:
        return
    pins = [pin for pin in policy.plugins if (pin.kind, pin.name) == (registry.kind, name)]
    if not pins:
        raise ConfigError(
            f"{registry.kind} {name!r} is of another package, {plugin.packages}, which its policy does not pin "
            "(policy: plugins)"
        )
    pins[0].check(plugin)


def check_weights(policy: Policy, order: Order) -> None:
    """Refuse weights that nobody has looked at: those that do not follow from the seed are known by their hash."""
    found = {
        "the backbone": (order.job.backbone or {}).get("sha256"),
        "the model that adapters are to": order.job.model.get("sha256"),
        "the word vectors": order.job.vectors,
        "the initial weights that are sent": order.job.theta0 if order.theta0 is not None else None,
    }
    for what, digest in found.items() if policy.weights is not None else ():
        if digest is not None and digest not in policy.weights:  # type: ignore[operator]
            raise ConfigError(f"its policy does not list {what} (SHA-256 {digest}; policy: weights)")


def check_secure(policy: Policy, job: JobDescription) -> None:
    """Refuse to answer without secure aggregation where the policy demands it: a run that has it says so in its job."""
    if policy.secure and not getattr(job, "secure", None):
        raise ConfigError("it answers only with secure aggregation, and this run has none (policy: secure)")


def check_rounds(policy: Policy, site: str, run: str, entries: Sequence[Entry]) -> None:
    """Refuse more rounds than the site takes part in."""
    trained = [entry for entry in entries if entry.what != "metrics"]
    here = sum(entry.run == run for entry in trained)
    for key, most, done, where in (
        ("most_rounds_per_run", policy.most_rounds_per_run, here, "in a run"),
        ("most_rounds", policy.most_rounds, len(trained), "in all"),
    ):
        if most is not None and done >= most:
            raise ConfigError(f"site {site} trains in at most {most} rounds {where}, and has in {done} (policy: {key})")


def check_upload(policy: Policy | None, site: str, upload: Layout) -> None:
    """Refuse, before training, what would go up and may not."""
    if policy is not None and policy.outgoing is not None:
        sizes = {name: np.dtype(kind).itemsize * int(np.prod(shape)) for name, (kind, shape) in upload.items()}
        check_outgoing(policy.outgoing, site, sizes)


def check_outgoing(allowed: Mapping[str, int], site: str, sizes: Mapping[str, int]) -> None:
    """Refuse arrays, by name and bytes, that are not among those that are allowed."""
    for name, size in sizes.items():
        if name not in allowed:
            raise ConfigError(
                f"site {site}: {name} may not leave, its policy lets out {', '.join(allowed) or 'nothing'} "
                "(policy: outgoing)"
            )
        if size > allowed[name]:
            raise ConfigError(
                f"site {site}: {name} may leave with at most {allowed[name]:,} bytes, this has {size:,} "
                "(policy: outgoing)"
            )
