"""Configs: TOML files, checked whole before anything runs."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from personafl.algorithms import ALGORITHMS, Algorithm, FedAvg
from personafl.data import PARTITIONS, SOURCES, Digits, Files, Partition, Source, build
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.federation.splits import Splitting
from personafl.models import MODELS, LoRA, Model
from personafl.pretrained.loading import BackboneSettings
from personafl.registry import Registry, checked, choose, is_class_path, require_known_key, suggestion, table_of
from personafl.settings import EngineSettings, Local, RaySettings, Schedule, check
from personafl.tasks import TASKS, LearningTask
from personafl.training.combinations import check_combination
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    seed: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    data: Source | Files = field(default_factory=Digits)
    partition: Partition | None = None
    splits: tuple[float, float, float] | None = None
    splitting: Splitting = "random"
    backbone: BackboneSettings | None = None
    task: LearningTask | None = None
    model: Model | None = None
    weights: str | None = None
    local: Local = field(default_factory=Local)
    algorithm: Algorithm = field(default_factory=FedAvg)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: Privacy | None = None
    robust: Robust | None = None
    ray: RaySettings = field(default_factory=RaySettings)

    def federation(self) -> Federation:
        """Load and divide the data that the config names; with a backbone, its features."""
        if self.backbone is None:
            return self._samples(self._read_by(self.model.path if isinstance(self.model, LoRA) else ""))
        backbone = self.backbone.load()
        data = self._read_by(backbone.origin["path"])
        return self._samples(data).through(backbone, batch_size=self.backbone.batch_size, device=self.backbone.device)

    def _read_by(self, folder: str) -> Source | Files:
        """The data; a column of texts without a tokenizer is read by the one of the pretrained model."""
        if folder and isinstance(self.data, Files) and self.data.text is not None and self.data.tokenizer is None:
            return replace(self.data, tokenizer=folder)
        return self.data

    def _samples(self, data: Source | Files) -> Federation:
        return build(data, self.partition, self.splits, self.seed, self.splitting)

    def tables(self) -> dict[str, Any]:
        """The config as TOML tables, with defaults written out, but those of settings that came later (`table_of`)."""
        out: dict[str, Any] = {"seed": self.seed, **self.schedule.table()}
        if self.splits is not None:
            out["splits"] = list(self.splits)
        if self.splitting != "random":
            out["splitting"] = self.splitting
        if self.backbone is not None:
            out["backbone"] = {key: value for key, value in asdict(self.backbone).items() if value is not None}
        for key in ("data", "partition", "task", "model", "algorithm"):
            value = getattr(self, key)
            if value is not None:
                out[key] = {"name": _REGISTRIES[key][0].name_of(type(value)), **table_of(value)}
        if self.weights is not None:
            out.setdefault("model", {})["weights"] = self.weights
        out["local"] = self.local.table()
        out["engine"] = asdict(self.engine)
        if self.ray != RaySettings():
            out["ray"] = asdict(self.ray)
        if self.privacy is not None:
            out["privacy"] = self.privacy.table()
        if self.robust is not None:
            out["robust"] = self.robust.table()
        return out


_REGISTRIES: dict[str, tuple[Registry, str | None]] = {
    "data": (SOURCES, "digits"),
    "partition": (PARTITIONS, None),
    "task": (TASKS, None),
    "model": (MODELS, None),
    "algorithm": (ALGORITHMS, "fedavg"),
}
_TOP = ("seed", "splits", "splitting", *(f.name for f in fields(Schedule)))
_TABLES = (*_REGISTRIES, "backbone", "local", "engine", "privacy", "robust", "ray")


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file and apply overrides such as `local.steps=40`.

    Settings under `[methods.NAME]` count where NAME is the algorithm, see `for_method`.
    """
    values = read_tables(path)
    named = copy.deepcopy(values)
    for override in overrides:
        _override(named, override)
    algorithm = _table(named, "algorithm").get("name", "fedavg")
    if algorithm in _methods(named) and algorithm in ALGORITHMS:
        return parse(for_method(values, algorithm, overrides))
    named.pop("methods", None)
    return parse(named)


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a config file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None


def for_method(values: Mapping[str, Any], method: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a config for one method of a comparison.

    A method is an algorithm (its name, or "package.module:Name"), or a name of the config's own: `[methods.NAME]` holds
    settings that count for this method only, such as `algorithm.lam = 0.5`, and, where NAME is not an algorithm,
    `algorithm.name`. Overrides win over both.

    >>> tables = {"algorithm": "fedavg", "methods": {"strong": {"algorithm": {"name": "ditto", "lam": 2.0}}}}
    >>> for_method(tables, "strong")["algorithm"]
    {'name': 'ditto', 'lam': 2.0}
    """
    out = copy.deepcopy(dict(values))
    for override in overrides:
        _override(out, override)
    methods = _methods(out)
    own = methods.get(method, {})
    name = _table(own, "algorithm").get("name", method)
    if name not in ALGORITHMS and not is_class_path(name):
        known = (*ALGORITHMS, *(label for label in methods if label not in ALGORITHMS))
        raise ConfigError(
            f"method {name!r} is unknown{suggestion(str(name), known)}; known: {', '.join(known)}"
            if name != method or method not in methods
            else f"[methods.{method}] is not the name of an algorithm, so it needs algorithm.name"
        )
    out.pop("methods", None)
    _override(out, f"algorithm.name={json.dumps(name)}")
    _merge(out, own)
    for override in overrides:
        if not override.startswith(("methods.", "algorithm.name=")):
            _override(out, override)
    return out


def _methods(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    methods = values.get("methods", {})
    if not isinstance(methods, dict) or not all(isinstance(own, dict) for own in methods.values()):
        raise ConfigError("methods must hold a table for each method, as in [methods.ditto]")
    for label, own in methods.items():
        for key in own:
            require_known_key(
                f"methods.{label}.", key, ("algorithm", "local", "rounds", "activity", "model", "privacy", "robust")
            )
    return methods


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def parse(values: Mapping[str, Any]) -> Config:
    """Check TOML tables and make a Config of them; an unknown key is an error that suggests the nearest known one."""
    if "secure" in values:
        raise ConfigError(
            "[secure] is for a federation (docs/flower.md): in a simulation everything is in one process, and there is "
            "nobody to hide answers from; leave it out"
        )
    if "federation" in values and "data" not in values:
        raise ConfigError(
            "[federation] without [data] is for sites, which bring their own (docs/deploy.md): one process needs [data]"
        )
    for key in values:
        if key == "federation":  # who takes part in a real one, in a config that serves both
            continue
        if key in (f.name for f in fields(Local)):
            raise ConfigError(f"unknown key {key!r} (did you mean 'local.{key}'?): it belongs into the table [local]")
        require_known_key("", key, (*_TOP, *_TABLES))
    tables = {key: _table(values, key) for key in _TABLES}
    if isinstance(values.get("engine"), str):
        tables["engine"] = {"name": values["engine"]}
    # A warm start: any model may begin with saved weights.
    weights = checked(str | None, "model.weights", tables["model"].get("weights"))
    tables["model"] = {key: value for key, value in tables["model"].items() if key != "weights"}
    chosen = {key: choose(key, tables[key], *_REGISTRIES[key]) for key in _REGISTRIES}
    source = chosen["data"]
    if source.structure == "pool" and chosen["partition"] is None:
        chosen["partition"] = choose("partition", {"name": "dirichlet"}, PARTITIONS, None)
    usual = getattr(source, "default_model", None)
    if chosen["model"] is None and usual is not None and "backbone" not in values:
        chosen["model"] = choose("model", {"name": usual}, MODELS, None)
    schedule = {key: values[key] for key in values if key in _TOP and key not in ("seed", "splits", "splitting")}
    seed = checked(int, "seed", values.get("seed", 0))
    check("seed", seed, 0 <= seed < 2**63, "at least 0 and below 2^63")
    if "backbone" in values and isinstance(chosen["model"], LoRA):
        raise ConfigError("[backbone] makes features, and model lora has its pretrained model inside: give one of them")
    privacy = _privacy(tables["privacy"]) if "privacy" in values else None
    robust: Robust | None = checked(Robust, "robust", tables["robust"]) if "robust" in values else None
    check_combination(chosen["algorithm"], privacy, robust)
    return Config(
        seed=seed,
        schedule=checked(Schedule, "", schedule),
        splits=checked(tuple[float, float, float] | None, "splits", values.get("splits")),
        splitting=checked(Splitting, "splitting", values.get("splitting", "random")),
        backbone=checked(BackboneSettings, "backbone", tables["backbone"]) if "backbone" in values else None,
        weights=weights,
        local=checked(Local, "local", tables["local"]),
        engine=checked(EngineSettings, "engine", tables["engine"]),
        ray=checked(RaySettings, "ray", tables["ray"]),
        privacy=privacy,
        robust=robust,
        **chosen,
    )


def _privacy(table: dict[str, Any]) -> Privacy:
    if "clip" not in table:
        raise ConfigError("[privacy] has no clip: the largest norm by which an answer may differ from what was sent")
    privacy: Privacy = checked(Privacy, "privacy", table)
    return privacy


def _table(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = values.get(key, {})
    if isinstance(table, str) and (key in _REGISTRIES or key == "engine"):
        return {"name": table}
    if not isinstance(table, dict):
        raise ConfigError(f"{key} = {table!r}: must be a table, as in [{key}]")
    return table


def _override(values: dict[str, Any], override: str) -> None:
    """Apply `a.b=value`; the value is TOML, or else a plain string."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-s {override!r}: must be key=value, such as local.steps=40")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    table = values
    for part in path:
        below = table.setdefault(part, {})
        if isinstance(below, str):
            below = table[part] = {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(f"-s {override!r}: {part} is not a table")
        table = below
    if path and len(path) == 1 and last == "name" and path[0] in _REGISTRIES and table.get("name") != value:
        table.clear()  # the other keys belonged to the other name
    table[last] = value
