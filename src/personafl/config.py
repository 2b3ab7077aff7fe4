"""Configs: TOML files, checked whole before anything runs."""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError

from personafl.algorithms import ALGORITHMS, Algorithm, FedAvg
from personafl.backends.ray.start import require_ray
from personafl.data import PARTITIONS, SOURCES, Digits, Files, Partition, Source, build
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.models import DEFAULT_MODEL, MODELS, Model
from personafl.settings import Local, Schedule, check
from personafl.training.privacy import Privacy


@dataclass(frozen=True)
class EngineSettings:
    """Which engine runs the clients, and what it may use.

    Parameters
    ----------
    name
        `auto` times the others on this model and machine and takes the fastest. `flower-sim` is Flower's simulator,
        `ray` a cluster, see `RaySettings`.
    threads
        torch threads; left out, the engine's own choice. With `ray` they are the driver's.
    memory
        Megabytes that clients worked on at once may take.
    device
        Where tensors live: `cpu`, `cuda`, `cuda:1`, …
    state_memory
        Megabytes of what clients keep between rounds that are kept in memory; more are memory-mapped files in the run
        folder. Only clients that were ever active count.
    """

    name: str = "auto"
    threads: int | None = None
    memory: int = 1024
    device: str = "cpu"
    state_memory: int = 1024

    def __post_init__(self) -> None:
        _registered("engine", self.name, ("auto", *ENGINES, "flower-sim", "ray"))
        if self.name == "ray":
            require_ray()
            check("engine.device", self.device, self.device == "cpu", "cpu for ray: GPUs are ray.gpus_per_actor")
        check("engine.threads", self.threads, self.threads is None or self.threads >= 1, "at least 1")
        check("engine.memory", self.memory, self.memory >= 1, "at least 1 megabyte")
        check("engine.state_memory", self.state_memory, self.state_memory >= 0, "at least 0 megabytes")
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"engine.device = {self.device!r}: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class RaySettings:
    """Where the engine `ray` finds its actors, and what each may use: the `[ray]` table of a config.

    Parameters
    ----------
    address
        Of a cluster, such as `10.0.0.1:6379`, or `auto` for the one that this machine belongs to. Left out, a Ray is
        started on this machine for the run, unless the environment names a cluster (RAY_ADDRESS).
    actors
        Processes that share the clients; left out, as many as there are CPUs (or GPUs) for.
    cpus_per_actor
        CPUs, and torch threads, of each. Left out, one; or what there is, where there are fewer actors on one machine.
    gpus_per_actor
        GPUs of each, such as 1, or 0.5 for two actors on each GPU; actors then compute there.
    data
        The folder of a saved federation (`Federation.save`) that all machines can read: actors map it, and no data is
        sent to them.
    """

    address: str | None = None
    actors: int | None = None
    cpus_per_actor: int | None = None
    gpus_per_actor: float = 0.0
    data: str | None = None

    def __post_init__(self) -> None:
        check("ray.actors", self.actors, self.actors is None or self.actors >= 1, "at least 1")
        cpus = self.cpus_per_actor
        check("ray.cpus_per_actor", cpus, cpus is None or cpus >= 1, "at least 1")
        gpus = self.gpus_per_actor
        whole = 0 <= gpus < 1 or gpus == int(gpus)
        check("ray.gpus_per_actor", gpus, gpus >= 0 and whole, "0, a share of one GPU, or a whole number")


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    seed: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    data: Source | Files = field(default_factory=Digits)
    partition: Partition | None = None
    splits: tuple[float, float, float] | None = None
    model: Model | None = None
    weights: str | None = None
    local: Local = field(default_factory=Local)
    algorithm: Algorithm = field(default_factory=FedAvg)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: Privacy | None = None
    ray: RaySettings = field(default_factory=RaySettings)

    def federation(self) -> Federation:
        """Load and divide the data that the config names."""
        return build(self.data, self.partition, self.splits, self.seed)

    def tables(self) -> dict[str, Any]:
        """The config as TOML tables, with every default written out."""
        out: dict[str, Any] = {"seed": self.seed, **asdict(self.schedule)}
        if self.splits is not None:
            out["splits"] = list(self.splits)
        for key in ("data", "partition", "model", "algorithm"):
            value = getattr(self, key)
            if value is not None:
                out[key] = {"name": value.name, **asdict(value)}
        if self.weights is not None:
            out.setdefault("model", {})["weights"] = self.weights
        out["local"] = asdict(self.local)
        out["engine"] = asdict(self.engine)
        if self.ray != RaySettings():
            out["ray"] = asdict(self.ray)
        if self.privacy is not None:
            out["privacy"] = self.privacy.table()
        return out


_REGISTRIES: dict[str, tuple[Mapping[str, type], str | None]] = {
    "data": (SOURCES, "digits"),
    "partition": (PARTITIONS, None),
    "model": (MODELS, None),
    "algorithm": (ALGORITHMS, "fedavg"),
}
_TOP = ("seed", "splits", *(f.name for f in fields(Schedule)))
_TABLES = (*_REGISTRIES, "local", "engine", "privacy", "ray")


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

    A method is an algorithm, or a name of the config's own: `[methods.NAME]` holds settings that count for this method
    only, such as `algorithm.lam = 0.5`, and, where NAME is not an algorithm, `algorithm.name`. Overrides win over both.

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
    if name not in ALGORITHMS:
        known = (*ALGORITHMS, *(label for label in methods if label not in ALGORITHMS))
        raise ConfigError(
            f"method {name!r} is unknown{_suggest(str(name), known)}; known: {', '.join(known)}"
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
            _known(f"methods.{label}.", key, ("algorithm", "local", "rounds", "activity", "model", "privacy"))
    return methods


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def parse(values: Mapping[str, Any]) -> Config:
    """Check TOML tables and make a Config of them; an unknown key is an error that suggests the nearest known one."""
    for key in values:
        _known("", key, (*_TOP, *_TABLES))
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
    if chosen["model"] is None and source.name in DEFAULT_MODEL:
        chosen["model"] = choose("model", {"name": DEFAULT_MODEL[source.name]}, MODELS, None)
    schedule = {key: values[key] for key in values if key in _TOP and key not in ("seed", "splits")}
    seed = checked(int, "seed", values.get("seed", 0))
    check("seed", seed, 0 <= seed < 2**63, "at least 0 and below 2^63")
    return Config(
        seed=seed,
        schedule=checked(Schedule, "", schedule),
        splits=checked(tuple[float, float, float] | None, "splits", values.get("splits")),
        weights=weights,
        local=checked(Local, "local", tables["local"]),
        engine=checked(EngineSettings, "engine", tables["engine"]),
        ray=checked(RaySettings, "ray", tables["ray"]),
        privacy=_privacy(tables["privacy"], chosen["algorithm"]) if "privacy" in values else None,
        **chosen,
    )


def _privacy(table: dict[str, Any], algorithm: Algorithm) -> Privacy:
    if "clip" not in table:
        raise ConfigError("[privacy] has no clip: the largest norm by which an answer may differ from what was sent")
    privacy: Privacy = checked(Privacy, "privacy", table)
    privacy.check(algorithm)
    return privacy


def default_model(shape: Sequence[int]) -> Model:
    """What is taken for data of one's own where the config names no model: `cnn` for images, else `mlp`.

    >>> default_model((3, 32, 32)).name, default_model((30,)).name
    ('cnn', 'mlp')
    """
    is_image = len(shape) == 3 and min(shape[1:]) >= 16  # the least that cnn can read
    return MODELS["cnn" if is_image else "mlp"]()


def _table(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = values.get(key, {})
    if isinstance(table, str) and (key in _REGISTRIES or key == "engine"):
        return {"name": table}
    if not isinstance(table, dict):
        raise ConfigError(f"{key} = {table!r}: must be a table, as in [{key}]")
    return table


def choose(kind: str, table: dict[str, Any], registry: Mapping[str, type], default: str | None) -> Any:
    """The dataclass that `name` stands for, with the table's other keys as its fields."""
    name = table.get("name", default)
    if name is None:
        if table:
            raise ConfigError(f"[{kind}] has no name: choose one of {', '.join(registry)}")
        return None
    _registered(kind, name, tuple(registry))
    return checked(registry[name], kind, {key: value for key, value in table.items() if key != "name"})


def checked(kind: Any, where: str, value: Any) -> Any:
    """Validate strictly (no "False" that means true), with one line for the first thing that is wrong."""
    prefix = f"{where}." if where and isinstance(value, dict) else where
    if isinstance(value, dict) and is_dataclass(kind):
        for key in value:
            _known(prefix, key, [f.name for f in fields(kind)])
    try:
        # By way of JSON, because TOML's lists may stand for tuples; a date becomes a string, which nothing takes.
        return TypeAdapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        first = cast(Any, error.errors()[0])
        key = prefix + ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        raise ConfigError(f"{key.rstrip('.')} = {first['input']!r}: {_plain(first['msg'])}") from None


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]


def _registered(kind: str, name: Any, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(f"{kind} = {name!r} is unknown{_suggest(str(name), known)}; known: {', '.join(known)}")


def _known(prefix: str, key: str, known: Sequence[str]) -> None:
    if key not in known:
        where = f"{prefix}{key}"
        raise ConfigError(f"unknown key {where!r}{_suggest(key, known, prefix)}; known here: {', '.join(known)}")


def _suggest(word: str, known: Sequence[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {prefix + near[0]!r}?)" if near else ""


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
