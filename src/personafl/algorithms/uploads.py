"""What goes between server and clients: what is sent down, what is declared to go up, and what came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError
from personafl.states import State, row, rows

Weights = Literal["samples", "equal"]


@dataclass(frozen=True)
class Sent:
    """What the server sends: `shared` goes to everybody; row i of every tensor in `each` goes to client i."""

    shared: State
    each: State = field(default_factory=dict)

    def one(self, at: int) -> State:
        """What the client of this row gets."""
        return {**self.shared, **row(self.each, at)}

    def rows(self, at: NDArray[np.int64]) -> Sent:
        """The same for the clients of these rows alone."""
        return Sent(self.shared, rows(self.each, torch.from_numpy(at)))

    def bytes_per_client(self) -> int:
        """How many bytes one client receives."""
        return _bytes(self.shared) + sum(t[:1].numel() * t.element_size() for t in self.each.values())


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Something that goes up of which the server needs the mean over the clients only.

    It may then be averaged on the way, and nobody can read the answer of a single client: `uploads[name]` is an error.

    Parameters
    ----------
    weights
        Of the mean: all clients count the same, or in proportion to their numbers of training samples.
    relative_to
        The name of what was sent that an answer differs from: clipping, noise and the screening of answers are about
        the difference. None where it differs from nothing that was sent.
    unprotected
        Why clipping and noise do not do, in words.
    irreplaceable
        Why nothing does in the place of this mean, such as a median, in words; answers may be clipped nevertheless.
    unbounded
        Why no robust rule does, not even one that bounds how long an update is, in words.
    within
        For a number that is relative to nothing that was sent: with `[privacy]` it is clipped to 0 … within · clip²,
        and has a share of the noise of its own. A negative one stands for "not known", and is sent as it is.
    """

    weights: Weights = "equal"
    relative_to: str | None = None
    unprotected: str = ""
    irreplaceable: str = ""
    unbounded: str = ""
    within: float | None = None


@dataclass(frozen=True, kw_only=True)
class Each:
    """Something that goes up of which the server must see every client's answer.

    Parameters
    ----------
    why
        It must, in words.
    weights, relative_to, unprotected, unbounded, within
        As of `Mean`; the weights are those of `uploads.mean`, if the server asks for that too.
    averaged
        Whether all that the server makes of it are means by `uploads.average`, and nothing of two answers at a time:
        then robust rules may stand in their place.
    """

    why: str
    weights: Weights = "equal"
    relative_to: str | None = None
    unprotected: str = ""
    unbounded: str = ""
    averaged: bool = False
    within: float | None = None

    @property
    def irreplaceable(self) -> str:
        """Why no other rule does in the place of a mean."""
        return "" if self.averaged else self.why


Uplink = Mapping[str, Mean | Each]
"""What goes up, by name."""


def check_declared(algorithm: str, up: Mapping[str, Tensor], uplink: Uplink) -> None:
    """Refuse uploads that are not those which the algorithm declares: they would be averaged or protected wrongly."""
    if up.keys() != uplink.keys():
        raise ConfigError(
            f"{algorithm} sends {', '.join(up) or 'nothing'}, but its uplink has {', '.join(uplink) or 'nothing'}: "
            "all that goes up must be declared"
        )


@dataclass(frozen=True)
class Uploads:
    """What came back in a round.

    Parameters
    ----------
    ids, samples
        The clients, and their numbers of training samples.
    values
        What they sent, a row for each of them; `aggregate` asks for it by `uploads.mean(name)` and `uploads[name]`.
    uplink
        What the algorithm declares of it.
    groups
        Where it passed through several hands, what is declared a `Mean` has a row for each group of clients, which
        is their mean: this has the sum of the samples and the number of clients of each group (G, 2).
    most
        The largest share that one client may have in an aggregate, where they are not trusted with more.
    factor
        The largest weight of one client as a multiple of the median weight, likewise.
    rule
        What stands in the place of a weighted mean of rows, see `training/robust.py`.
    noise
        The standard deviation of the noise that clients added to every number that is relative to what was sent.
    """

    ids: Tensor
    samples: Tensor
    values: State
    uplink: Uplink
    groups: Tensor | None = None
    most: float = 1.0
    factor: float = inf
    rule: Callable[[Tensor, Tensor], Tensor] | None = None
    noise: float = 0.0

    def __getitem__(self, name: str) -> Tensor:
        """The rows of what is declared an `Each`."""
        if isinstance(self.uplink[name], Mean):
            raise TypeError(f"{name!r} is declared a Mean: it has no row for each client (declare it an Each, and why)")
        return self.values[name]

    def __len__(self) -> int:
        return len(self.ids)

    def mean(self, name: str) -> Tensor:
        """Σ p_i value_i, with p_i as the uplink says: equal, or in proportion to the clients' training samples.

        >>> values = {"theta": torch.tensor([[0.0], [4.0]])}
        >>> up = Uploads(torch.arange(2), torch.tensor([30, 10]), values, {"theta": Mean(weights="samples")})
        >>> up.mean("theta").tolist()
        [1.0]
        """
        declared = self.uplink[name]
        samples, counts = self.samples, torch.ones(len(self.samples))
        if self.groups is not None and isinstance(declared, Mean):
            samples, counts = self.groups.unbind(1)
        return self.average(
            self.values[name], self.limit((samples if declared.weights == "samples" else counts).double())
        )

    def average(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean of rows with these weights, or all the same; or what the robust rule of the run has in its place."""
        if self.rule is not None:
            return self.rule(rows, rows.new_ones(len(rows)) if weights is None else weights)
        if weights is None:
            return rows.mean(0)
        averaged: Tensor = torch.tensordot((weights / weights.sum()).to(rows), rows, dims=1)
        return averaged

    def shares(self, name: str) -> Tensor:
        """How much each client counts in `mean(name)`: shares of 1.

        >>> up = Uploads(torch.arange(2), torch.tensor([30, 10]), {}, {"theta": Mean(weights="samples")})
        >>> up.shares("theta").tolist()
        [0.75, 0.25]
        """
        counts = self.samples if self.uplink[name].weights == "samples" else torch.ones(len(self))
        share = self.limit(counts.double())
        return share / share.sum()

    def limit(self, weights: Tensor) -> Tensor:
        """Weights of which none is more than `most` of their sum: those that are above become as large as allowed.

        Nor `factor` times their median, before that. As they are, to the bit, where none is above. Where there are too
        few for all to be below, all are the same.

        >>> up = Uploads(torch.arange(3), torch.ones(3), {}, {}, most=0.5)
        >>> up.limit(torch.tensor([2.0, 3.0, 900.0])).tolist()
        [2.0, 3.0, 5.0]
        """
        if self.factor < inf and len(weights) and (usual := float(weights.median())) > 0:
            weights = weights.clamp(max=self.factor * usual)
        if self.most >= 1 or not len(weights) or bool(weights.max() <= self.most * weights.sum()):
            return weights
        if self.most * len(weights) <= 1:
            return torch.full_like(weights, float(weights.min()) or 1.0)
        ordered = weights.double().sort(descending=True).values
        for above in range(1, len(ordered)):
            # The `above` largest have the same weight c, with c = most · (above · c + the others).
            largest = self.most * ordered[above:].sum() / (1 - self.most * above)
            if ordered[above] <= largest:
                break
        return weights.clamp(max=float(largest))

    def rows(self, at: Tensor) -> Uploads:
        """The answers of these rows alone."""
        samples = self.samples[at.to(self.samples.device)]
        return replace(self, ids=self.ids[at.cpu()], samples=samples, values=rows(self.values, at))

    def condense(self) -> Uploads:
        """The same with one row, the mean, in place of all rows of what is declared a `Mean`.

        >>> values = {"theta": torch.tensor([[0.0], [4.0]])}
        >>> up = Uploads(torch.tensor([3, 8]), torch.tensor([30, 10]), values, {"theta": Mean(weights="samples")})
        >>> one = up.condense()
        >>> one.values["theta"].tolist(), one.groups.tolist(), len(one)
        ([[1.0]], [[40, 2]], 2)
        """
        means = {name: self.mean(name)[None] for name in self.values if isinstance(self.uplink[name], Mean)}
        group = torch.stack([self.samples.sum(), self.samples.new_tensor(len(self))])[None]
        return Uploads(self.ids, self.samples, {**self.values, **means}, self.uplink, group)

    @classmethod
    def join(cls, parts: Sequence[Uploads]) -> Uploads:
        """The uploads of several groups of clients, all or none of them condensed, as one; in the order of clients."""
        uplink, ids = parts[0].uplink, torch.cat([part.ids for part in parts])
        order = torch.argsort(ids)
        values = {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values}
        whole = parts[0].groups is None  # nothing was condensed
        each = {name: value for name, value in values.items() if whole or isinstance(uplink[name], Each)}
        groups = None if whole else torch.cat([part.groups for part in parts if part.groups is not None])
        samples = torch.cat([part.samples for part in parts])
        return cls(ids[order], samples[order], {**values, **rows(each, order)}, uplink, groups)

    def bytes(self) -> int:
        """How many bytes these answers take."""
        return _bytes(self.values)


def _bytes(state: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in state.values())
