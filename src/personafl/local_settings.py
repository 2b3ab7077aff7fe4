"""How clients train: the `[local]` table of a config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.checks import check, check_types, table_without_unused
from personafl.errors import ConfigError

BETAS, EPS = (0.9, 0.999), 1e-8
"""Those of torch."""


@dataclass(frozen=True)
class Local:
    """How clients train: the `[local]` table of a config.

    Parameters
    ----------
    lr
        Learning rate η.
    batch_size
        Samples per step; 0 takes all of a client's training data at every step.
    batch_share
        Samples per step as a share of a client's training data, rounded up, where that is more than `batch_size`:
        each client then has a batch size of its own. Left out: all have the same.
    steps, epochs
        Local work per round, as one or the other: a number of steps, or of passes over the client's data.
    optimizer
        `sgd`, `adam` or `adamw`, as in `torch.optim`.
    momentum, nesterov
        Of SGD.
    betas, eps
        Of Adam and AdamW.
    weight_decay
        Added to the gradient by SGD and Adam, taken off the parameters by AdamW.
    optimizer_state
        `fresh`: momentum, and Adam's means, start anew in every round; `kept`: each client keeps its own from one of
        its rounds to the next. They are never sent.
    clip_norm
        The longest gradient: a longer one is scaled to this norm, as `torch.nn.utils.clip_grad_norm_` does it.
    schedule
        How the learning rate goes on: `constant`, `step` (by `lr_decay`, `lr_decay_every`) or `cosine`, from `lr` down
        to `lr_min`. Left out: `step` where `lr_decay` is given, else `constant`.
    schedule_over
        What the schedule counts: `rounds`, or the `steps` of a client within a round, each round anew.
    schedule_length
        How many of these a cosine takes, warm-up included; after that the rate stays at `lr_min`. Left out: the run's
        rounds, or the steps that a client takes in the round.
    warmup
        So many rounds or steps come first in which the rate rises to `lr`: lr·1/(warmup + 1), lr·2/(warmup + 1), …
    lr_decay, lr_decay_every
        Of `step`: the learning rate is multiplied by `lr_decay` after every `lr_decay_every` rounds (or steps).
    lr_min
        Where a cosine ends.
    groups
        Factors of the learning rate by parameter: of the `head` (the last layer that has parameters, or what fedper,
        fedrep, … call so), the `body` (the others), and of parameters by their names, with * for any letters, as in
        `"*.bias"`. The factors of all that fit a parameter are multiplied; 0 leaves it as it is.
    held_back
        Share of each client's validation samples that algorithms do not see: scores on them (`personal_held_*`) can
        be compared between methods that choose something on validation data and methods that do not. Left out, they
        see all of it.
    features
        Of algorithms that look at features: the layer whose output they are ("body"), or whose input ("head.input").
        Left out: what the module returns beside its outputs, else the input of its last layer with parameters.

    Examples
    --------
    >>> local = Local(lr=0.1, schedule="cosine", schedule_length=5, warmup=1)
    >>> [round(local.rate(r), 3) for r in (1, 2, 3, 4, 5)]
    [0.05, 0.1, 0.085, 0.05, 0.015]
    """

    lr: float = 0.05
    batch_size: int = 10
    steps: int | None = None
    epochs: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    lr_decay_every: int = 1
    held_back: float | None = None
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    nesterov: bool = False
    betas: tuple[float, float] = BETAS
    eps: float = EPS
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    clip_norm: float | None = None
    schedule: Literal["constant", "step", "cosine"] | None = None
    schedule_over: Literal["rounds", "steps"] = "rounds"
    schedule_length: int | None = None
    warmup: int = 0
    lr_min: float = 0.0
    groups: dict[str, float] = field(default_factory=dict)
    features: str = ""
    batch_share: float | None = None

    def __post_init__(self) -> None:
        if callable(self.lr):
            raise ConfigError(
                f"local.lr = {self.lr!r}: must be a number; local.schedule says how it changes over rounds or steps"
            )
        check_types("local.", self)
        check("local.lr", self.lr, 0 < self.lr < 1e38, "above 0, and no more than float32 holds")
        check("local.batch_size", self.batch_size, self.batch_size >= 0, "at least 1, or 0 for all data at once")
        share, usable = self.batch_share, "in (0, 1], or left out; and left out where local.batch_size is 0"
        check("local.batch_share", share, share is None or (0 < share <= 1 and self.batch_size > 0), usable)
        held = self.held_back
        check("local.held_back", held, held is None or 0 < held < 1, "above 0 and below 1, or left out")
        for name, value in (("steps", self.steps), ("epochs", self.epochs)):
            check(f"local.{name}", value, value is None or value >= 1, "at least 1")
        check("local.epochs", self.epochs, None in (self.steps, self.epochs), "left out where local.steps is given")
        self._check_optimizer()
        self._check_schedule()
        self._check_groups()

    def _check_optimizer(self) -> None:
        sgd = self.optimizer == "sgd"
        check("local.optimizer", self.optimizer, self.optimizer in ("sgd", "adam", "adamw"), "sgd, adam or adamw")
        check("local.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("local.momentum", self.momentum, sgd or not self.momentum, f"left out: {self.optimizer} has local.betas")
        check("local.nesterov", self.nesterov, not self.nesterov or self.momentum > 0, "with local.momentum above 0")
        betas = self.betas if isinstance(self.betas, tuple | list) and len(self.betas) == 2 else (-1.0, -1.0)
        pair = all(not isinstance(beta, str) and 0 <= beta < 1 for beta in betas)
        check("local.betas", self.betas, pair, "two numbers in [0, 1), such as [0.9, 0.999]")
        check("local.eps", self.eps, self.eps > 0, "above 0")
        for key, value, usual in (("betas", tuple(betas), BETAS), ("eps", self.eps, EPS)):
            check(f"local.{key}", value, not sgd or value == usual, 'left out, or local.optimizer "adam" or "adamw"')
        check("local.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        known = self.optimizer_state in ("fresh", "kept")
        check("local.optimizer_state", self.optimizer_state, known, '"fresh" (each round) or "kept" (by the client)')
        clip = self.clip_norm
        check("local.clip_norm", clip, clip is None or clip > 0, "above 0, or left out")

    def _check_schedule(self) -> None:
        check("local.lr_decay", self.lr_decay, 0 < self.lr_decay <= 1, "in (0, 1]")
        check("local.lr_decay_every", self.lr_decay_every, self.lr_decay_every >= 1, "at least 1 round")
        known = self.schedule in (None, "constant", "step", "cosine")
        check("local.schedule", self.schedule, known, "constant, step or cosine, or left out")
        over = self.schedule_over
        check("local.schedule_over", over, over in ("rounds", "steps"), "rounds or steps")
        steps = self.schedule in (None, "step") or self.lr_decay == 1
        check("local.lr_decay", self.lr_decay, steps, f'left out, or local.schedule "step" and not "{self.schedule}"')
        cosine, length = self.schedule == "cosine", self.schedule_length
        check("local.lr_min", self.lr_min, 0 <= self.lr_min <= self.lr, "at least 0 and at most local.lr")
        check("local.lr_min", self.lr_min, cosine or not self.lr_min, 'left out, or local.schedule "cosine"')
        check("local.schedule_length", length, length is None or cosine, 'left out, or local.schedule "cosine"')
        check("local.warmup", self.warmup, self.warmup >= 0, f"at least 0 {over}")
        longer = length is None or length > self.warmup
        check("local.schedule_length", length, longer, f"more than local.warmup = {self.warmup}")

    def _check_groups(self) -> None:
        given = isinstance(self.groups, dict)
        check("local.groups", self.groups, given, 'a table of factors, such as {"head" = 10.0, "*.bias" = 0.5}')
        for name, factor in self.groups.items():
            number = isinstance(factor, int | float) and not isinstance(factor, bool)
            check(f'local.groups."{name}"', factor, number and 0 <= factor < 1e38, "a factor of local.lr, at least 0")

    # --- rates -----------------------------------------------------------------------------------------------

    def rate(self, round: int) -> float:
        """The learning rate in a round (rounds count from 1); before the first step, where steps are counted."""
        return float(self.lr) if self.schedule_over == "steps" else float(self._at(round - 1, self.schedule_length))

    def step_rate(self, step: int, steps: int | Tensor) -> float | Tensor:
        """The learning rate at a step of a round (from 0), of so many; a tensor for several clients at once."""
        return self._at(step, steps if self.schedule_length is None else self.schedule_length)

    def _at(self, now: int, length: int | Tensor | None) -> float | Tensor:
        if now < self.warmup:
            return self.lr * (now + 1) / (self.warmup + 1)
        now -= self.warmup
        if self.schedule != "cosine":
            return self.lr * float(self.lr_decay ** (now // self.lr_decay_every))
        if length is None:
            raise ConfigError("local.schedule_length is left out: how many rounds does the cosine take?")
        if isinstance(length, Tensor):
            angles = math.pi * (now / (length - self.warmup).clamp(min=1)).clamp(max=1.0)
            return self.lr_min + (self.lr - self.lr_min) * (1 + torch.cos(angles)) / 2
        angle = math.pi * min(now / max(length - self.warmup, 1), 1.0)
        return self.lr_min + (self.lr - self.lr_min) * (1 + math.cos(angle)) / 2

    def for_rounds(self, rounds: int) -> Local:
        """These settings for a run of so many rounds: a cosine over rounds knows its length."""
        if self.schedule != "cosine" or self.schedule_over != "rounds":
            return self
        length = rounds if self.schedule_length is None else self.schedule_length
        enough = f"at least {rounds}, the number of rounds, or local.lr_min above 0: rounds after it would not train"
        check("local.schedule_length", length, length >= rounds or self.lr_min > 0, enough)
        check("local.warmup", self.warmup, self.warmup < length, f"less than the {length} rounds")
        return replace(self, schedule_length=length)

    # --- what it asks of an algorithm ------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether a step is θ ← θ − lr · gradient and nothing else."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip_norm)

    def beyond(self, *taken: str) -> tuple[str, Any, str] | None:
        """The first setting, but for those in `taken`, that makes a step more than SGD at one rate.

        Its key, its value, and what it would have to be; None where there is no such setting.

        >>> Local(optimizer="adam").beyond("momentum")
        ('local.optimizer', 'adam', '"sgd"')
        """
        changes = self.schedule == "cosine" or self.lr_decay != 1 or self.warmup > 0
        found = {
            "optimizer": (self.optimizer != "sgd", '"sgd"'),
            "momentum": (self.momentum > 0, "0"),
            "nesterov": (self.nesterov, "false"),
            "clip_norm": (self.clip_norm is not None, "left out"),
            "groups": (bool(self.groups), "left out"),
            "schedule_over": (changes and self.schedule_over == "steps", '"rounds"'),
        }
        for key, (used, expected) in found.items():
            if used and key not in taken:
                return f"local.{key}", getattr(self, key), expected
        return None

    def table(self) -> dict[str, Any]:
        """As a config has it."""
        return table_without_unused(self, "optimizer")

    def default_steps(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of steps of each client that does not choose its own (20 where nothing is said)."""
        if self.epochs is None:
            return np.full(len(samples), 20 if self.steps is None else self.steps, np.int64)
        return np.asarray(self.epochs * -(-samples // self.batch_sizes(samples)), np.int64)

    def batch_sizes(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many samples each client's batches should have, which may be more than it has; at least 1.

        >>> Local(batch_size=10, batch_share=0.1).batch_sizes(np.array([7, 205])).tolist()
        [10, 21]
        """
        if self.batch_size == 0:
            return np.asarray(np.maximum(samples, 1), np.int64)
        sizes = np.full(len(samples), min(self.batch_size, 2**62), np.int64)
        if self.batch_share is None:
            return sizes
        # A share such as 0.07 of 100 is 7.000000000000001 in floating point, and 7 samples.
        return np.asarray(np.maximum(sizes, np.ceil(self.batch_share * samples - 1e-9)), np.int64)
