"""What `train` and `compare` are given in Python, checked before anything runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor, nn

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.errors import ConfigError, ModelError
from personafl.federation import Federation
from personafl.registry import choose, require_known_key
from personafl.settings import EngineSettings, Local, Schedule
from personafl.training.events import Listener
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


def algorithm_of(given: Any) -> Algorithm:
    """An algorithm as it is given: an object, or the name of one.

    >>> algorithm_of("ditto")
    Ditto(lam=1.0, weights='samples')
    """
    if isinstance(given, str):
        made: Algorithm = choose("algorithm", {"name": given}, ALGORITHMS, None)
        return made
    if isinstance(given, type) and issubclass(given, Algorithm):
        raise ConfigError(f"algorithm is the class {given.__name__}: write {given.__name__}(), with parentheses")
    if not isinstance(given, Algorithm):
        raise ConfigError(
            f"algorithm is {_what(given)}: give an algorithm such as pf.Ditto(lam=0.5), or the name of one, such as "
            "'ditto'"
        )
    return given


def check_federation(given: Any) -> None:
    """Refuse what is not a federation, with how to make one of it."""
    if isinstance(given, Federation):
        return
    how = "pf.Federation.from_arrays(x, y, clients=…)"
    if isinstance(given, nn.Module):
        raise ConfigError("the first argument is the model: the federation comes first, then the model")
    if isinstance(given, Mapping):
        how = "pf.Federation.from_clients({client: (x, y), …})"
    elif isinstance(given, str | os.PathLike):
        how = "pf.Federation.from_table(path, client=…, label=…), from_folder(path) or load(path)"
    elif hasattr(given, "columns") and not isinstance(given, np.ndarray):
        how = "pf.Federation.from_table(frame, client=…, label=…)"
    elif given is Federation:
        how = "pf.Federation.from_arrays(x, y, clients=…), or another of its from_… constructors"
    elif hasattr(given, "__getitem__") and not isinstance(given, np.ndarray | Tensor | tuple | list):
        how = "pf.Federation.from_datasets({client: dataset, …}) or another of its from_… constructors"
    raise ConfigError(f"federation is {_what(given)}: make one with {how}")


def check_model(given: Any) -> None:
    """Refuse what is not a torch module with its weights."""
    if isinstance(given, nn.Module):
        return
    how = "give a torch module, such as nn.Linear(64, 10)"
    if isinstance(given, type) and issubclass(given, nn.Module):
        how = f"give an instance of it, {given.__name__}(…)"
    elif isinstance(given, str):
        how = "give a torch module; models by name are for configs"
    elif isinstance(given, Mapping):
        how = "give the module that has these weights, after module.load_state_dict(weights)"
    elif callable(given):
        how = "give what it returns, a torch module"
    raise ModelError(f"model is {_what(given)}: {how}")


def check_settings(
    schedule: Any,
    local: Any,
    privacy: Any,
    engine: Any,
    *,
    loss: Any = None,
    metrics: Any = None,
    robust: Any = None,
    out: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Refuse settings of another kind than they must be."""
    kinds = {"schedule": Schedule, "local": Local, "privacy": Privacy, "robust": Robust}
    for (key, kind), given in zip(kinds.items(), (schedule, local, privacy, robust), strict=True):
        if given is not None and not isinstance(given, kind):
            raise ConfigError(f"{key} is {_what(given)}: give pf.{kind.__name__}({_EXAMPLES[kind]})")
    if not isinstance(engine, str | EngineSettings):
        raise ConfigError(f"engine is {_what(engine)}: give a name such as 'stacked', or pf.EngineSettings(…)")
    if isinstance(loss, type):
        each = "reduction='none'" if issubclass(loss, nn.Module) else ""
        raise ConfigError(f"loss is {_what(loss)}: give an instance, {loss.__name__}({each})")
    if isinstance(loss, int | float | list | tuple | Mapping):
        raise ConfigError(f"loss is {_what(loss)}: give its name, or a function of (outputs, y), one value a sample")
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ConfigError(f"out is {_what(out)}: give the path of a folder")
    named = isinstance(metrics, list | tuple) and any(isinstance(metric, str) for metric in metrics)
    if named or not isinstance(metrics, Mapping | list | tuple | None):
        raise ConfigError(f"metrics is {_what(metrics)}: give {{name: function of (outputs, y)}}")
    for key in settings or {}:
        if key in (field.name for field in fields(Local)):
            raise ConfigError(f"{key} belongs to local training: write local=pf.Local({key}=…)")


def check_seed(seed: Any) -> None:
    """Refuse what is no seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {seed!r}: must be a whole number, at least 0 and below 2^63")


def check_listeners(listeners: Any) -> None:
    """Refuse what cannot be told about rounds."""
    for listener in listeners:
        if isinstance(listener, type) or not all(hasattr(listener, told) for told in vars(Listener) if told[0] != "_"):
            raise ConfigError(f"listeners holds {_what(listener)}: give objects of a class made of pf.Listener")


def check_keys(settings: Mapping[str, Any]) -> None:
    """Refuse single settings that neither the schedule nor the engine has."""
    of_both = [f.name for kind in (Schedule, EngineSettings) for f in fields(kind) if f.name != "name"]
    for key in settings:
        require_known_key("", key, of_both)


def features_hint(federation: Federation) -> str:
    """What may be wrong with features that a model fails on, for the end of its error."""
    x: Any = federation.x
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    if kind == "uint8":
        return "; x are bytes: give floats, such as x.astype('float32') / 255, or a model that begins with x.float()"
    if kind == "int64":
        return "; x are whole numbers: give x.astype('float32'), unless they are what an embedding looks up"
    return ""


def _what(given: Any) -> str:
    """What somebody gave instead."""
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, str | int | float | bool):
        return repr(given)
    if inspect.isroutine(given):
        return f"the function {getattr(given, '__name__', '')}".rstrip()
    if isinstance(given, np.ndarray | Tensor):
        return f"an array of shape {tuple(given.shape)}"
    name = type(given).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


_EXAMPLES: dict[type, str] = {
    Schedule: "rounds=…, activity=…",
    Local: "lr=…, batch_size=…, steps=…",
    Privacy: "clip=…, noise=…",
    Robust: "'median'",
}
