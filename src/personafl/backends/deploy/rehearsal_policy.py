"""The policies of a rehearsal: each site allows what federation.toml trains, as it is installed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from personafl.algorithms import ALGORITHMS
from personafl.backends.deploy.layout import Layout
from personafl.backends.flower.app import read_operator
from personafl.backends.flower.job import usual_task
from personafl.backends.flower.pins import code_sha256, described
from personafl.files import write_text
from personafl.models import MCLR, MODELS, default_model
from personafl.registry import Registry
from personafl.tasks import TASKS


def write_policies(layout: Layout) -> None:
    """Write every site's policy.toml, as somebody would who has read federation.toml and approves of it."""
    text = "# What federation.toml trains, with the code that is installed here.\n"
    for name in layout.sites:
        write_text(layout.site(name) / "policy.toml", text + tomli_w.dumps(allowing(layout.folder / "federation.toml")))


def allowing(config: Path) -> dict[str, Any]:
    """A policy that allows the run of an operator's config, and no other algorithm, model, task, code or weights."""
    run, settings = read_operator(config)
    model = run.model or (MCLR() if run.backbone else default_model(settings.input_shape))
    task = run.task or usual_task(settings.classes)
    pinned = (run.backbone, model, settings.vectors)  # what may name a file of weights by its hash
    weights = [sha256 for part in pinned if (sha256 := getattr(part, "sha256", None))]
    named = ((ALGORITHMS, run.algorithm.name), (MODELS, model.name), (TASKS, task.name))
    plugins = [_pin(registry, name) for registry, name in named if name in registry.plugins]
    policy: dict[str, Any] = {f"{registry.kind}s": [name] for registry, name in named}
    policy |= {"code": code_sha256("personafl"), "most_rounds_per_run": 2 * run.schedule.rounds}
    policy |= {} if settings.secure is None else {"secure": True}
    # Initial weights of the operator's own are known only when the run begins.
    policy |= {} if run.weights else {"weights": weights}
    return policy | ({"plugins": plugins} if plugins else {})


def protection(config: Path) -> str:
    """What is switched on in a rehearsal, in words."""
    run, settings = read_operator(config)
    found = []
    if settings.secure is not None:
        found.append("secure aggregation: the operator gets sums of the sites' answers, and no single one")
    if run.robust is not None:
        found.append(f"a robust rule ({run.robust.rule}) on the sites' answers")
    if run.privacy is not None:
        found.append(f"[privacy] with clip = {run.privacy.clip:g} and noise = {run.privacy.noise:g}")
    return "; ".join([*found, "each site's policy.toml, which allows this run and no other"])


def _pin(registry: Registry, name: str) -> dict[str, str]:
    pin = described(registry.plugins[name])
    return {"kind": pin.kind, "name": pin.name, "version": pin.version, "sha256": pin.sha256}
