"""A model in two parts, its head and its body: what FedPer, FedRep, FedBABU, LG-FedAvg and FedRoD have in common.

The head is the last `head` layers (a layer is a module with parameters of its own), or the parameters whose names start
with one of `head_names`, such as "fc2"; the body is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from personafl.algorithms.base import Algorithm, Context, Gradient, JobInfo, Mean, Sent, Uplink
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
    """How many of the last layers are the head."""
    head_names: tuple[str, ...] = ()
    """The head by the first letters of its parameters' names, in place of `head`: `["fc2"]`."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

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

    def for_part(self, ctx: Context, head: bool) -> Context:
        """A context for steps on the head alone, or on the body: with the rates of its parameters."""
        return ctx if ctx.factors is None else replace(ctx, factors=self._pieces.split(ctx.factors)[head])


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
        self.for_part(ctx, at).descend(carry, part, slope)


@dataclass(frozen=True)
class SharedBody(HeadAndBody):
    """The body is everybody's and averaged, a client has a head of its own, which starts from θ0's."""

    @property
    def uplink(self) -> Uplink:
        return {"body": Mean(weights=self.weights, relative_to="body")}

    def new_server(self, theta0: Tensor, clients: int) -> State:
        body, head = self._pieces.split(theta0)
        return {"body": body.clone(), "head0": head.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"head": self._pieces.split(theta0)[1]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"body": server["body"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"body": sent["body"], "head": own["head"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"head": carry["head"]}, {"body": carry["body"]}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(sent["body"], own["head"])

    def global_model(self, server: State) -> Tensor | None:
        return None


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")
