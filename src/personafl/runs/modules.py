"""The module of a run whose model is a user's own: named by them, and compared with what the run has.

A run folder says how its module was called, and nothing that it says is imported: only what a user names on their own
command line is.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from personafl.errors import ModelError
from personafl.inputs import read_shape
from personafl.kernels.modes import frozen_hashes
from personafl.models import initialize
from personafl.plugins import why
from personafl.registry import checked, class_path, is_class_path, not_frozen
from personafl.runs.bounds import described
from personafl.storage.folder import RunFolder
from personafl.storage.reading import open_tensors

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_FILES = ("personal", "global", "others")
_FORM = "name a class or a function without arguments as package.module:Name"


def named_module(name: str, manifest: Mapping[str, Any], constants: Mapping[str, Any]) -> nn.Module:
    """The module that a user names as "package.module:Name", imported as `python -m` would from the current directory.

    The name may be a class or a function without arguments that makes the module, the module itself, or settings of a
    model as a config names them.
    """
    found = _imported(name)
    if isinstance(found, nn.Module):
        return found
    if isinstance(found, type) and not issubclass(found, nn.Module) and hasattr(found, "build"):
        return _built(name, found, manifest, constants)
    if not callable(found):
        raise ModelError(f"--module {name!r} is a {type(found).__name__}: {_FORM}")
    return _made(name, found)


def called(module: nn.Module) -> str | None:
    """What a user would name to have this module again; None where there is no such name.

    >>> called(nn.Linear(1, 1)) is None
    True
    """
    kind = type(module)
    path = class_path(kind)
    unknown = kind.__module__.partition(".")[0] in ("torch", "__main__", "builtins") or "<locals>" in path
    return None if unknown else path


def how_to_give(manifest: Mapping[str, Any], path: Path) -> str:
    """What a user writes to open a run whose model is their own."""
    model, resolved = (
        table if isinstance(table := manifest.get(key), Mapping) else {} for key in ("model", "resolved")
    )
    name = resolved.get("module") or (model.get("class") if "name" in model else None)
    # What a stranger's folder says is shown where it is nothing but a name.
    known = name if isinstance(name, str) and _NAME.fullmatch(name) else "package.module:Name"
    return f"load_run({str(path)!r}, module=…) in Python, --module {known} on the command line"


def check_fits(module: nn.Module, folder: RunFolder, manifest: Mapping[str, Any]) -> None:
    """Refuse a module that is not the one that a run trained: by the names and shapes of its parameters."""
    trained = {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}
    kept = _kept(folder)
    count, expected = sum(p.numel() for p in module.parameters() if p.requires_grad), manifest["resolved"]["parameters"]
    kind = type(module).__name__
    if kept is not None:
        for name, shape in trained.items():
            if name not in kept:
                raise ModelError(f"{kind} has {name!r}, which the models of {folder.path} have not: {_first(kept)}")
            if kept[name] != shape:
                raise ModelError(f"{kind} has {name!r} of shape {shape}, the models of {folder.path} {kept[name]}")
        if lacking := [name for name in kept if name not in module.state_dict()]:
            raise ModelError(f"{kind} has no {lacking[0]!r}, which the models of {folder.path} have: {_first(kept)}")
    elif count != expected:
        raise ModelError(f"{kind} has {count:,} parameters to train, the model of {folder.path} {expected:,}")
    _check_frozen(module, folder)


def _check_frozen(module: nn.Module, folder: RunFolder) -> None:
    """Refuse another backbone than what was trained is an adapter to."""
    known = folder.frozen()
    found = frozen_hashes(module) if known else {}
    if wrong := [name for name, value in known.items() if found.get(name) != value]:
        how = "differs" if wrong[0] in found else "is not among its frozen parameters"
        raise ModelError(
            f"{type(module).__name__} has another backbone than the models of {folder.path} were trained on: "
            f"{wrong[0]!r} {how} ({len(wrong)} of {len(known)} do); give the one that they were trained on"
        )


def _kept(folder: RunFolder) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of what the run's models hold; None where it has none yet, or has them elsewhere."""
    for name in _FILES:
        path = folder.models / f"{name}.safetensors"
        if not path.exists():
            continue
        with open_tensors(path) as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        return {key: shape[1:] for key, shape in shapes.items()} if name == "personal" else shapes
    return None


def _first(kept: Mapping[str, Any]) -> str:
    return f"they have {', '.join(list(kept)[:4])}{', …' if len(kept) > 4 else ''}"


def _imported(name: str) -> Any:
    if not is_class_path(name):
        raise ModelError(f"--module {name!r}: {_FORM}, such as mymodels.text:Net")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises
        raise ModelError(f"--module {name!r} cannot be imported from {here}: {why(error)}; {_FORM}") from error
    return found


def _made(name: str, maker: Any) -> nn.Module:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise ModelError(
            f"--module {name!r} cannot be made without arguments ({error}): write a function that gives them, "
            f"def net(): return {getattr(maker, '__name__', 'Net')}(…), and name that"
        ) from error
    except ValueError:  # it has no signature that can be read: it is tried
        pass
    try:
        made = maker()
    except Exception as error:
        raise ModelError(f"--module {name!r} fails: {why(error)}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"--module {name!r} gives a {type(made).__name__}, not a torch module")
    return made


def _built(name: str, kind: Any, manifest: Mapping[str, Any], constants: Mapping[str, Any]) -> nn.Module:
    """The module of a model that a config named, with the settings of the run."""
    if wrong := not_frozen(kind):
        raise ModelError(f"--module {name!r}: {wrong}")
    table = {k: v for k, v in manifest.get("model", {}).items() if k not in ("name", "class", "weights")}
    resolved = described(Path("run.toml"), manifest)
    model = checked(kind, "model", table)
    return initialize(model, read_shape(resolved["input_shape"]), resolved["outputs"], int(manifest["seed"]), constants)
