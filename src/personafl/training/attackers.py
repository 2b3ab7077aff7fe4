"""Clients that send wrong answers, in a simulation: to see what they do to everybody else, and which rules hold.

An attacker trains as everybody does and sends something else; or its labels are wrong (`flip_labels`). Algorithms,
engines and the server know nothing of it. Its answer passes the same limit as everybody's: what cannot be computed with
is left out of the round.

    scaled           w + s Δ, Δ = y − w being its honest update
    sign-flipped     w − s Δ
    gaussian         w + noise that is s times as long as Δ
    count-inflated   its honest update, said to be of s times as many samples; and what is no update, such as Self-FL's
                     variance, divided by s
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import Sent, Uploads
from personafl.checks import check
from personafl.engines.base import Engine
from personafl.federation import Federation
from personafl.states import Ints
from personafl.streams import generator
from personafl.training.clients import LONGEST, Answers, LocalClients, usable
from personafl.training.robust import updates

AttackName = Literal["scaled", "sign-flipped", "gaussian", "count-inflated"]
TOO_LONG = f"its update is longer than any model, {LONGEST:.0e}"


@dataclass(frozen=True)
class Attack:
    """What some clients send in place of their answers.

    Parameters
    ----------
    kind
        See above.
    clients
        The numbers of the attackers.
    size
        s: how much.
    """

    kind: AttackName
    clients: tuple[int, ...]
    size: float = 1.0

    def __post_init__(self) -> None:
        check("kind", self.kind, self.kind in get_args(AttackName), f"one of {', '.join(get_args(AttackName))}")

    def __call__(self, uploads: Uploads, sent: Sent, seed: int, round: int) -> Uploads:
        """The attackers' uploads in place of `uploads`; `sent` is what these clients got, in the same order."""
        rows = torch.from_numpy(np.flatnonzero(np.isin(uploads.ids.numpy(), self.clients)))
        values, changed = dict(uploads.values), updates(uploads, sent)
        if self.kind == "count-inflated":
            for name in values.keys() - changed.keys():
                values[name] = values[name].index_copy(0, rows, values[name][rows] / self.size)
            samples = uploads.samples.index_copy(0, rows, (uploads.samples[rows] * self.size).to(uploads.samples))
            return replace(uploads, samples=samples, values=values)
        draw = generator(seed, "attack", round)
        for name, (update, before) in changed.items():
            wrong = before[rows] + self._wrong(update[rows], draw)
            values[name] = values[name].index_copy(0, rows, wrong.reshape(values[name][rows].shape))
        return replace(uploads, values=values)

    def _wrong(self, update: Tensor, draw: np.random.Generator) -> Tensor:
        if self.kind != "gaussian":
            return update * (self.size if self.kind == "scaled" else -self.size)
        noise = torch.from_numpy(draw.standard_normal(tuple(update.shape))).to(update)
        lengths = torch.linalg.vector_norm(update, dim=1, keepdim=True)
        wrong: Tensor = noise * (self.size * lengths / torch.linalg.vector_norm(noise, dim=1, keepdim=True))
        return wrong


class AttackedClients(LocalClients):
    """Clients in this process of which some send wrong answers.

    Parameters
    ----------
    attack
        A function of the answers, what was sent, the seed and the round, such as an `Attack`.
    """

    def __init__(
        self,
        engine: Engine,
        attack: Callable[[Uploads, Sent, int, int], Uploads],
        memory: int = 1024,
        folder: Path | None = None,
    ) -> None:
        super().__init__(engine, memory, folder)
        self.attack = attack

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        answers = super().train(round, ids, sent)
        if not len(answers.uploads):
            return answers
        places = np.searchsorted(ids, answers.uploads.ids.numpy())
        uploads = self.attack(answers.uploads, sent.rows(places), self.seed, round)
        good = usable(uploads.values, len(uploads))
        if bool(good.all()):
            return replace(answers, uploads=uploads)
        dropped = dict.fromkeys(uploads.ids[~good].tolist(), TOO_LONG)
        return replace(answers, uploads=uploads.rows(good.nonzero().flatten()), dropped=dropped)


def flip_labels(federation: Federation, clients: tuple[int, ...]) -> Federation:
    """A federation in which the training samples of these clients have the label C − 1 − y of C classes.

    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=3, alpha=1.0))
    >>> bool((flip_labels(fed, (1,)).y == fed.y).all())
    False
    """
    y, starts, sizes = federation.y.clone(), federation.starts("train"), federation.sizes("train")
    classes = federation.classes
    assert classes is not None, "labels are flipped where they are classes"
    for i in clients:
        mine = slice(int(starts[i]), int(starts[i] + sizes[i]))
        y[mine] = classes - 1 - y[mine]
    return replace(federation, y=y)
