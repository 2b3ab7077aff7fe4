"""Names: what configs and the command line call algorithms, data, partitions and models.

Those of a package that somebody installed are found by its entry points (`personafl.algorithms`, `personafl.data`,
`personafl.partitions`, `personafl.models`), and are then names like our own. A config may also name a class as
"package.module:Name". A run folder or a message may not: what these say is looked up among the names, and a module that
they name is never imported.
"""

from __future__ import annotations

import difflib
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from personafl.errors import ConfigError


class Registry(Mapping[str, Any]):
    """Dataclasses by their names: personafl's own, then those of installed packages.

    Parameters
    ----------
    kind
        What a config calls the table: `algorithm`, `data`, `partition`, `model`.
    group
        The entry points to look at.
    own
        The classes that come with personafl, each with its `name`.

    Examples
    --------
    >>> from personafl.algorithms import ALGORITHMS
    >>> ALGORITHMS["ditto"].__name__, "dito" in ALGORITHMS
    ('Ditto', False)
    """

    def __init__(self, kind: str, group: str, own: Sequence[Any]) -> None:
        self.kind, self.group = kind, group
        self._loaded: dict[str, Any] = {each.name: each for each in own}

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self._loaded}

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._loaded, *self._installed])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._installed

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            point = self._installed[name]
            try:
                found = point.load()
            except Exception as error:  # whatever somebody's package raises
                reason = (str(error).splitlines() or [""])[0]
                raise ConfigError(
                    f"{self.kind} {name!r} is {point.value} of an installed package, which cannot be imported: "
                    f"{type(error).__name__}: {reason}"
                ) from error
            self._loaded[name] = _usable(found, self.kind, point.value)
        return self._loaded[name]

    def name_of(self, kind: type) -> str:
        """What a config calls a class: its name here, or else "package.module:Name"."""
        name = getattr(kind, "name", None)
        if name in self and self[str(name)] is kind:
            return str(name)
        return f"{kind.__module__}:{kind.__qualname__}"

    def resolve(self, name: Any, imports: bool = True) -> Any:
        """The class that a name stands for, or one line that says what is known.

        Parameters
        ----------
        name
            A name, or where `imports` is true also "package.module:Name".
        """
        if imports and isinstance(name, str) and ":" in name:
            return _imported(name, self.kind)
        require_known_name(self.kind, name, tuple(self))
        return self[name]


def _imported(name: str, kind: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever somebody's module raises
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{kind} = {name!r} cannot be imported: {type(error).__name__}: {reason}; name a class as "
            "package.module:Name that Python finds from here"
        ) from error
    return _usable(found, kind, name)


def _usable(found: Any, kind: str, where: str) -> Any:
    if not isinstance(found, type) or not is_dataclass(found) or not isinstance(getattr(found, "name", None), str):
        raise ConfigError(f"{kind} {where!r} is not a dataclass with a name: see docs/your-package.md")
    return found


def choose(kind: str, table: dict[str, Any], registry: Registry, default: str | None, imports: bool = True) -> Any:
    """The dataclass that `name` stands for, with the table's other keys as its fields.

    What a run folder or another machine says is chosen with `imports` false: it is a known name, or refused.
    """
    name = table.get("name", default)
    if name is None:
        if table:
            raise ConfigError(f"[{kind}] has no name: choose one of {', '.join(registry)}")
        return None
    return checked(registry.resolve(name, imports), kind, {k: value for k, value in table.items() if k != "name"})


def checked(kind: Any, where: str, value: Any) -> Any:
    """Validate strictly (no "False" that means true), with one line for the first thing that is wrong."""
    prefix = f"{where}." if where and isinstance(value, dict) else where
    if isinstance(value, dict) and is_dataclass(kind):
        for key in value:
            require_known_key(prefix, key, [f.name for f in fields(kind)])
    try:
        # By way of JSON, because TOML's lists may stand for tuples; a date becomes a string, which nothing takes.
        return TypeAdapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        first = cast(Any, error.errors()[0])
        key = prefix + ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        said = first["msg"]
        raise ConfigError(f"{key.rstrip('.')} = {first['input']!r}: {said[:1].lower()}{said[1:]}") from None


def require_known_name(kind: str, name: Any, known: Sequence[str]) -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    if name not in known:
        raise ConfigError(f"{kind} = {name!r} is unknown{suggestion(str(name), known)}; known: {', '.join(known)}")


def require_known_key(prefix: str, key: str, known: Sequence[str]) -> None:
    """Refuse a key that is not known, with the nearest one that is."""
    if key not in known:
        where = f"{prefix}{key}"
        raise ConfigError(f"unknown key {where!r}{suggestion(key, known, prefix)}; known here: {', '.join(known)}")


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """The nearest known word, for the end of a sentence; empty where none is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {prefix + near[0]!r}?)" if near else ""


def old_spellings(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that still knows its classes by the spelling of an earlier version."""

    def getattr_(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = renamed[name]
        warnings.warn(f"{module}.{name} is now {new}; the old spelling goes", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return getattr_
