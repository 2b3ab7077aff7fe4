"""Plug-ins: what installed packages add to personafl, found by their entry points.

A plug-in is imported when it is used and not before. One that cannot be imported breaks nothing but its own use, none
takes the place of something that personafl has itself, and where two packages have the same name for theirs, neither is
taken.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from personafl.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Plugin:
    """What installed packages have under one name; usable where it is one package."""

    kind: str
    name: str
    points: tuple[EntryPoint, ...]

    @property
    def packages(self) -> str:
        """Who brings it, for people to read."""
        return " and ".join(f"{_distribution(point)} ({point.value})" for point in self.points)

    def load(self) -> Any:
        """Import it, or raise a PluginError that says whose it is and what is wrong."""
        if len(self.points) > 1:
            raise PluginError(
                f"{self.kind} {self.name!r} is a name that several installed packages have: {self.packages}; uninstall "
                "all but one of them, or name the class as package.module:Name in a config"
            )
        try:
            return self.points[0].load()
        except (Exception, SystemExit) as error:  # whatever somebody's package raises
            raise PluginError(
                f"{self.kind} {self.name!r} of the installed package {self.packages} cannot be imported: {why(error)}"
            ) from error


def installed(kind: str, group: str, own: Container[str] = ()) -> tuple[dict[str, Plugin], dict[str, Plugin]]:
    """The plug-ins of a group of entry points by name, and those that are not used, as personafl has the name itself.

    Parameters
    ----------
    kind
        What messages call one of them.
    own
        The names that personafl has itself.
    """
    from importlib.metadata import entry_points  # a tenth of a second that most commands need not pay

    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {}).setdefault(point.value, point)
    plugins = {name: Plugin(kind, name, tuple(points.values())) for name, points in sorted(found.items())}
    return (
        {name: plugin for name, plugin in plugins.items() if name not in own},
        {name: plugin for name, plugin in plugins.items() if name in own},
    )


def why(error: BaseException) -> str:
    r"""An exception in a line.

    >>> why(ImportError("there is no b\nmore"))
    'ImportError: there is no b'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": ")


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
