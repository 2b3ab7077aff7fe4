"""Code that somebody has reviewed, known again by version and hash: of personafl, and of packages that add to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from personafl.errors import ConfigError
from personafl.plugins import Plugin

CODE = (".py", ".so", ".pyd")
"""Files that Python imports."""


@dataclass(frozen=True)
class PinnedPlugin:
    """Something of an installed package that a site lets run.

    Parameters
    ----------
    kind, name
        What it is, and the name of its entry point.
    version
        Of the package, as it is installed.
    sha256
        Of the package's code, as `personafl site check` shows it.
    """

    kind: Literal["algorithm", "model", "task"]
    name: str
    version: str
    sha256: str

    def check(self, plugin: Plugin) -> None:
        """Refuse a package that is not the one that was reviewed, before anything of it is imported."""
        found = described(plugin)
        for key in ("version", "sha256"):
            here, pinned = getattr(found, key), getattr(self, key)
            if here != pinned:
                raise ConfigError(f"{self.kind} {self.name!r} has {key} {here} here, its policy pins {pinned}")


def described(plugin: Plugin) -> PinnedPlugin:
    """An installed plug-in as a policy would pin it."""
    point = plugin.points[0]
    version = point.dist.version if point.dist is not None else "unknown"
    return PinnedPlugin(plugin.kind, plugin.name, version, code_sha256(point.module.split(".")[0]))  # type: ignore[arg-type]


@cache
def code_sha256(package: str) -> str:
    """A SHA-256 over all code of an installed package, which is not imported for it: names and contents of its files.

    >>> len(code_sha256("personafl"))
    64
    """
    spec = find_spec(package)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise ConfigError(f"there is no code of the package {package}")
    places = [Path(place) for place in spec.submodule_search_locations or [str(spec.origin)]]
    whole = sha256()
    for place in places:
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.suffix in CODE]
        for name, path in sorted((path.relative_to(place.parent).as_posix(), path) for path in files):
            whole.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
