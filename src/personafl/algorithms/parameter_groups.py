"""Learning rates by parameter: the factors of `local.groups`, for the pieces of a parameter vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from personafl.errors import ConfigError
from personafl.registry import suggestion

Layers = Sequence[tuple[str, int]]
"""Name and size of each piece of a parameter vector, in order."""


def last_layers(layers: Layers, count: int = 1) -> tuple[bool, ...]:
    """Which pieces belong to the last layers; a layer is a module with parameters of its own.

    >>> last_layers([("0.weight", 6), ("0.bias", 2), ("2.weight", 4), ("2.bias", 2)])
    (False, False, True, True)
    """
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in layers))
    last = set(modules[len(modules) - count :])
    return tuple(name.rpartition(".")[0] in last for name, _ in layers)


def rate_factors(layers: Layers, groups: Mapping[str, float], head: Sequence[bool]) -> list[float]:
    """The factor of the learning rate of each piece; those of all groups that it belongs to are multiplied.

    Parameters
    ----------
    groups
        Factors of `head`, `body` and patterns of names.
    head
        Which pieces are the head.

    Raises
    ------
    ConfigError
        A group has no parameter.

    Examples
    --------
    >>> layers = [("0.weight", 6), ("0.bias", 2), ("2.weight", 4), ("2.bias", 2)]
    >>> rate_factors(layers, {"head": 10.0, "*.bias": 0.5}, last_layers(layers))
    [1.0, 0.5, 10.0, 5.0]
    """
    factors = [1.0] * len(layers)
    for group, factor in groups.items():
        inside = [_belongs(group, name, mine) for (name, _), mine in zip(layers, head, strict=True)]
        if not any(inside):
            names = [name for name, _ in layers]
            raise ConfigError(
                f'local.groups has "{group}", and no parameter is in it{suggestion(group, names)}: write head, body or '
                f"a pattern of the names {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
            )
        factors = [value * factor if mine else value for value, mine in zip(factors, inside, strict=True)]
    return factors


def _belongs(group: str, name: str, head: bool) -> bool:
    return head is (group == "head") if group in ("head", "body") else fnmatchcase(name, group)
