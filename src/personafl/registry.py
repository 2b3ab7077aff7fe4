"""Names: what configs and the command line call algorithms, data, partitions, tasks and models.

Those of a package that somebody installed are found by its entry points (`personafl.algorithms`, `personafl.data`,
`personafl.partitions`, `personafl.tasks`, `personafl.models`), and are then names like our own. A config may also name
a class as "package.module:Name". A run folder or a message may not: what these say is looked up among the names, and a
module that they name is never imported.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, cast

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError

from personafl.errors import ConfigError, PluginError
from personafl.plugins import Plugin, installed, why

_LEGAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names are parts of the names of run folders."""


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
    base, needs
        What a class of somebody else has to be: a subclass of `base`, with these attributes.

    Examples
    --------
    >>> from personafl.algorithms import ALGORITHMS
    >>> ALGORITHMS["ditto"].__name__, "dito" in ALGORITHMS
    ('Ditto', False)
    """

    def __init__(
        self, kind: str, group: str, own: Sequence[Any], base: type = object, needs: Sequence[str] = ()
    ) -> None:
        self.kind, self.group = kind, group
        self._own: dict[str, Any] = {each.name: each for each in own}
        self._base, self._needs = base, tuple(needs)
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _found(self) -> tuple[dict[str, Plugin], dict[str, Plugin]]:
        return installed(self.kind, self.group, self._own)

    @property
    def plugins(self) -> dict[str, Plugin]:
        """What installed packages add, by name."""
        return self._found[0]

    @property
    def unused(self) -> dict[str, Plugin]:
        """What installed packages would add under names that personafl has itself."""
        return self._found[1]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self.plugins

    def __len__(self) -> int:
        return len(self._own) + len(self.plugins)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self.plugins

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            plugin = self.plugins[name]
            found = self._usable(plugin.load(), f"{name!r} of the installed package {plugin.packages}")
            if found.name != name:
                raise PluginError(
                    f"{self.kind} {name!r} of the installed package {plugin.packages} calls itself {found.name!r}: its "
                    "entry point has to have the same name"
                )
            self._loaded[name] = found
        return self._loaded[name]

    def usable(self) -> tuple[dict[str, Any], dict[str, str]]:
        """All that can be used, by name, and the plug-ins that cannot, each with the reason."""
        good: dict[str, Any] = {}
        bad: dict[str, str] = {}
        for name in self:
            try:
                good[name] = self[name]
            except PluginError as error:
                bad[name] = str(error)
        return good, bad

    def knows(self, kind: type) -> bool:
        """Whether a class is what its own name stands for here."""
        name = getattr(kind, "name", None)
        try:
            return isinstance(name, str) and name in self and self[name] is kind
        except PluginError:
            return False

    def name_of(self, kind: type) -> str:
        """What a config calls a class: its name here, or else "package.module:Name"."""
        return str(kind.name) if self.knows(kind) else class_path(kind)  # type: ignore[attr-defined]

    def resolve(self, name: Any, imports: bool = True) -> Any:
        """The class that a name stands for, or one line that says what is known.

        Parameters
        ----------
        name
            A name, or where `imports` is true also "package.module:Name".
        """
        if imports and is_class_path(name):
            return self._usable(imported(name, self.kind), repr(name))
        require_known_name(self.kind, name, tuple(self))
        return self[name]

    def _usable(self, found: Any, where: str) -> Any:
        """A class of somebody else, if it is one that can be used here."""
        if wrong := self._wrong(found):
            raise PluginError(f"{self.kind} {where} cannot be used: {wrong} (see docs/your-package.md)")
        return found

    def _wrong(self, found: Any) -> str:
        if not isinstance(found, type):
            return f"it is not a class but a {type(found).__name__}"
        if not issubclass(found, self._base):
            return f"{found.__name__} is not a subclass of {self._base.__name__}"
        if wrong := not_frozen(found):
            return wrong
        name = getattr(found, "name", None)
        if not isinstance(name, str) or not _LEGAL.fullmatch(name):
            return f"{found.__name__} needs a class variable name, of letters, digits, '-', '_' and '.', not {name!r}"
        settings = [f.name for f in fields(cast(Any, found))]
        members = {name for each in found.__mro__ for name in vars(each)}
        if lacks := [need for need in self._needs if need not in members and need not in settings]:
            return f"{found.__name__} has no {', '.join(lacks)}"
        return ""


def not_frozen(kind: type) -> str:
    """What keeps a class from being a frozen dataclass of its settings; empty where it is one.

    >>> class Mine:
    ...     steps: int = 3
    >>> not_frozen(Mine)
    'Mine is not a frozen dataclass: write @dataclass(frozen=True) above its class'
    """
    decorate = "write @dataclass(frozen=True) above its class"
    if not is_dataclass(kind):
        return f"{kind.__name__} is not a frozen dataclass: {decorate}"
    if not cast(Any, kind).__dataclass_params__.frozen:
        return f"{kind.__name__} is a dataclass that is not frozen: {decorate}"
    known = {f.name for f in fields(kind)}
    if "__dataclass_params__" not in vars(kind):  # the class that it inherits from is one
        new = [n for n, a in inspect.get_annotations(kind).items() if "ClassVar" not in str(a)]
        if forgotten := [name for name in new if name not in known or name in vars(kind)]:
            return f"{kind.__name__} has settings ({', '.join(forgotten)}) and is not a dataclass itself: {decorate}"
    return ""


def is_class_path(name: Any) -> bool:
    """Whether this is a class as a config may name it: "package.module:Name"."""
    return isinstance(name, str) and ":" in name


def class_path(kind: type) -> str:
    """A class as a config names one that has no name here.

    >>> class_path(Registry)
    'personafl.registry:Registry'
    """
    return f"{kind.__module__}:{kind.__qualname__}"


def later(default: Any) -> Any:
    """A field that came after the first version: at its default it is in no table, see `table_of`."""
    return field(default=default, metadata={"later": True})


def not_later(settings: Any) -> list[str]:
    """The fields that were there in the first version, and those that came later and are used."""
    return [f.name for f in fields(settings) if not f.metadata.get("later") or getattr(settings, f.name) != f.default]


def table_of(settings: Any) -> dict[str, Any]:
    """A dataclass of settings as a table, without those that came `later` and are not used.

    Runs that do not use them are the same runs as before: in run.toml, for `--resume`, and where runs are found again.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Mine:
    ...     old: int = 1
    ...     new: int = later(2)
    >>> table_of(Mine()), table_of(Mine(new=3))
    ({'old': 1}, {'old': 1, 'new': 3})
    """
    names = not_later(settings)
    return {name: value for name, value in asdict(settings).items() if name in names}


def described(value: Any) -> dict[str, Any]:
    """What a run folder says of an algorithm, data, a partition or a model.

    Its name, its class where that is not personafl's own, and its settings.
    """
    path = class_path(type(value))
    return {"name": value.name, **({} if _package(path) == "personafl" else {"class": path}), **table_of(value)}


def _package(path: str) -> str:
    return re.split("[.:]", path, maxsplit=1)[0]


def imported(name: str, kind: str) -> Any:
    """What a config names as "package.module:Name"."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises
        raise PluginError(
            f"{kind} = {name!r} cannot be imported: {why(error)}; name a class as package.module:Name, of an installed "
            "package or of a module on PYTHONPATH"
        ) from error
    return found


def choose(kind: str, table: dict[str, Any], registry: Registry, default: str | None) -> Any:
    """The dataclass that a config's `name` stands for, with the table's other keys as its fields."""
    name = table.get("name", default)
    if name is None:
        if table:
            raise ConfigError(f"[{kind}] has no name: choose one of {', '.join(registry)}")
        return None
    return checked(registry.resolve(name), kind, {k: value for k, value in table.items() if k != "name"})


def choose_known(kind: str, table: Any, registry: Registry) -> Any:
    """The same of what a run folder or another machine says: a name that is known here, or refused.

    Nothing that it names is imported. The class that it may record has to be of the package that has the name here.
    """
    if not isinstance(table, Mapping) or "name" not in table:
        raise ConfigError(f"{kind} has no name")
    name, path = table["name"], table.get("class")
    if path is not None and (not isinstance(name, str) or name not in registry):
        raise ConfigError(f"{kind} = {name!r} is {path}, and no installed package has that name")
    found = registry.resolve(name, imports=False)
    if _package(str(path or class_path(found))) != _package(class_path(found)):
        raise ConfigError(f"{kind} = {name!r} is {path}, and here the name stands for {class_path(found)}")
    return checked(found, kind, {k: value for k, value in table.items() if k not in ("name", "class")})


def checked(kind: Any, where: str, value: Any) -> Any:
    """Validate strictly (no "False" that means true), with one line for the first thing that is wrong."""
    prefix = f"{where}." if where and isinstance(value, dict) else where
    if isinstance(value, dict) and is_dataclass(kind):
        for key in value:
            require_known_key(prefix, key, [f.name for f in fields(kind)])
    try:
        # By way of JSON, because TOML's lists may stand for tuples; a date becomes a string, which nothing takes.
        return _adapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:  # of somebody else's class
        raise PluginError(
            f"{where}: the settings of {class_path(kind)} cannot be checked: their types have to be numbers, strings, "
            f"booleans, lists or tables of these, and defined where the class is ({why(error)})"
        ) from error
    except ValidationError as error:
        first = cast(Any, error.errors()[0])
        key = prefix + ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        said = first["msg"]
        raise ConfigError(f"{key.rstrip('.')} = {first['input']!r}: {said[:1].lower()}{said[1:]}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once for each type: it takes ten times as long as what it checks."""
    return TypeAdapter(kind)


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
