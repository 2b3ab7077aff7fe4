"""How settings are checked: one line that names the setting, its value and what it must be."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from personafl.errors import ConfigError

_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
}


def check(key: str, value: Any, ok: bool, expected: str) -> None:
    """Raise a ConfigError that names the setting, its value and its range."""
    if not ok:
        raise ConfigError(f"{key} = {value!r}: must be {expected}")


def table_without_unused(settings: Any, first: str) -> dict[str, Any]:
    """A dataclass of settings as a table; fields from `first` on are left out where they have their usual values.

    They came after the first version: runs that do not use them are the same runs as before, in run.toml, for
    `--resume` and for a comparison that looks for runs to reuse.
    """
    names = [setting.name for setting in fields(settings)]
    later, usual = names[names.index(first) :], type(settings)()
    return {k: v for k, v in asdict(settings).items() if k not in later or v != getattr(usual, k)}


def check_types(prefix: str, settings: Any) -> None:
    """Refuse a function or a text where a dataclass of settings has a number, before anything is compared with it.

    >>> from personafl.settings import Schedule
    >>> Schedule(rounds=2.5)
    Traceback (most recent call last):
      ...
    personafl.errors.ConfigError: rounds = 2.5: must be a whole number
    """
    for setting in fields(settings):
        check_type(f"{prefix}{setting.name}", str(setting.type), getattr(settings, setting.name))


def check_type(key: str, annotation: str, value: Any) -> None:
    """The same for one value. Annotations of anything but numbers, texts, booleans and lists of these pass.

    >>> check_type("algorithm.lam", "float", "1")
    Traceback (most recent call last):
      ...
    personafl.errors.ConfigError: algorithm.lam = '1': must be a number
    """
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        check(key, value, isinstance(value, list | tuple), "a list")
        for each in value:
            check_type(key, annotation[len("tuple[") : -len(", ...]")], each)
        return
    kinds = [kind for kind in annotation.split(" | ") if kind != "None"]
    if not all(kind in _KINDS for kind in kinds) or (value is None and "None" in annotation):
        return
    known = [_KINDS[kind] for kind in kinds]
    is_number = not isinstance(value, bool)
    fits = any(isinstance(value, kind) and (is_number or kind is bool) for kind, _ in known)
    words = " or ".join(word for _, word in known) + (", or left out" if "None" in annotation else "")
    check(key, value, fits, words)


def path_of(given: Any) -> Path:
    """A path, or one line that says that this is none.

    >>> path_of(3)
    Traceback (most recent call last):
      ...
    personafl.errors.ConfigError: 3 is not a path: give the name of a folder, as text or as a pathlib.Path
    """
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{given!r} is not a path: give the name of a folder, as text or as a pathlib.Path")
    return Path(given)
