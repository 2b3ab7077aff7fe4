"""A model in two parts, its head and its body: what FedPer, FedRep, FedBABU, LG-FedAvg and FedRoD have in common.

The head is the last `head` layers (a layer is a module with parameters of its own), or the parameters whose names start
with one of `head_names`, such as "fc2"; the body is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from personafl.algorithms.base import Algorithm, Context, Gradient, JobInfo
from personafl.algorithms.extras import ForSomeModels, HasHead
from personafl.algorithms.parameter_groups import last_layers, rate_factors
from personafl.algorithms.pieces import Pieces
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class WithHead(HasHead, Algorithm):
    """An algorithm that treats the head of a model in its own way."""

    head: int = 1
    head_names: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    # Which pieces of the vector belong to the head: set by `prepare`.
    _pieces: ClassVar[Pieces] = Pieces(())

    def __post_init__(self) -> None:
        check("algorithm.head", self.head, self.head >= 0, "at least 0")

    def prepare(self, job: JobInfo) -> Self:
        count = len({name.rpartition(".")[0] for name, _ in job.layers})
        check("algorithm.head", self.head, self.head <= count, f"at most {count}, the number of the model's layers")
        last = last_layers(job.layers, self.head)
        for wanted in self.head_names:
            if not any(_within(name, wanted) for name, _ in job.layers):
                names = ", ".join(name for name, _ in job.layers)
                raise ConfigError(f"algorithm.head_names has {wanted!r}, but the model's parameters are {names}")
        pieces = [
            (
                size,
                any(_within(name, n) for n in self.head_names) if self.head_names else own,
            )
            for (name, size), own in zip(job.layers, last, strict=True)
        ]
        rate_factors(job.layers, job.local.groups, [own for _, own in pieces])  # each of them has a parameter
        fitted = replace(self)
        object.__setattr__(fitted, "_pieces", Pieces(tuple(pieces)))
        return fitted

    @property
    def head_pieces(self) -> tuple[bool, ...]:
        return tuple(own for _, own in self._pieces.sizes)


@dataclass(frozen=True)
class HeadAndBody(ForSomeModels, WithHead):
    """An algorithm for models that have both a head and a body; it trains them one at a time, or keeps one of them."""

    def prepare(self, job: JobInfo) -> Self:
        fitted, key = super().prepare(job), "head_names" if self.head_names else "head"
        parts, value = set(fitted.head_pieces), getattr(self, key)
        whole = f"fewer layers for {self.name}: the head would be the whole model, and no body would be left"
        check(f"algorithm.{key}", value, parts != {True}, whole)
        check(f"algorithm.{key}", value, parts != {False}, f"at least 1 for {self.name}")
        return fitted

    def descend(self, part: Literal["body", "head"], carry: State, grad: Gradient, ctx: Context) -> None:
        """One step of the settings' optimizer on `carry[part]`, the other part as it is."""
        at = part == "head"
        slope = self._pieces.split(grad(self._pieces.join(carry["body"], carry["head"])))[at]
        factors = None if ctx.factors is None else self._pieces.split(ctx.factors)[at]
        replace(ctx, factors=factors).descend(carry, part, slope)


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")
