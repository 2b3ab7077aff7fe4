"""The contract between algorithms and engines.

An algorithm is a frozen dataclass of its hyper-parameters with pure methods, each written for ONE client:

=============================== ======== =====================================================================
`prepare(setting)`              once     the algorithm, fitted to the job
`new_server(theta0, clients)`   once     what the server keeps between rounds
`new_client(theta0, sent)`      client   what a client keeps, when it is first seen: from what is sent to it then
`send(server, ids)`             server   what goes down: to everybody, and where needed to each client
`begin(own, sent, ctx)`         client   the carry of local training, and the number of steps of this client
`step(carry, sent, grad, ctx)`  client   one local step; `grad(theta)` is the gradient on this step's batch
`finish(own, carry, sent, ctx)` client   the client's new state, and what goes up
`aggregate(server, uploads)`    server   the new server state, from whatever subset of clients answered
`personal(own, sent)`           client   the parameters that this algorithm calls the personalized model
=============================== ======== =====================================================================

and two declarations: `about`, the algorithm in words, and `uplink`, what goes up: a `Mean` where the server needs only
that, an `Each` where it must see every answer. Averaging on the way, clipping and noise, the screening of answers and
the default `aggregate` follow from it.

A client is first seen when it is first active; if it never was, when it is evaluated, of which nothing is kept; and a
newcomer when it joins after training. Who fails in its first round was not seen.

State and messages are flat `dict[str, Tensor]`. No algorithm imports an engine, a file system or a network.
`aggregate` may change the server state that it is given (a matrix of all clients' models need not be copied).
`new_client`, `begin`, `step`, `finish`, `personal` and `report` run under `torch.func.vmap` on the stacked engine: no
`if` on a tensor's value there (use `torch.where`), no `.item()`, no random numbers. What only a few algorithms need is
in `extras`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.uploads import Each, Mean, Sent, State, Uplink, Uploads, Weights
from personafl.errors import ConfigError

__all__ = [
    "About",
    "Algorithm",
    "Context",
    "Each",
    "Gradient",
    "Local",
    "Mean",
    "Program",
    "Sent",
    "JobInfo",
    "State",
    "Uplink",
    "Uploads",
    "Validation",
    "Weights",
    "check",
]


class Gradient(Protocol):
    """What a step sees of its client's data: the batches that were drawn for it."""

    def __call__(self, theta: Tensor, batch: int = 0, objective: Any = None, **extra: Tensor) -> Tensor:
        """Gradient of the mean loss at `theta` on one of this step's batches."""
        ...

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """θ ← θ − lr (gradient at θ on this step's first batch + λ (θ − anchor)), in place."""
        ...

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """The model's outputs at `theta` on one of this step's batches, in evaluation mode."""
        ...


class Validation(Protocol):
    """A client's validation data, for algorithms that choose something on it; without what `held_back` keeps."""

    def __call__(self, theta: Tensor) -> State:
        """Means over the client's validation samples of `loss` and of each metric; 0 for a client without any."""
        ...


@dataclass(frozen=True)
class Local:
    """How clients train: the `[local]` table of a config.

    Parameters
    ----------
    lr
        Learning rate η of plain SGD.
    batch_size
        Samples per step; 0 takes all of a client's training data at every step.
    steps, epochs
        Local work per round, as one or the other: a number of steps, or of passes over the client's data.
    momentum, weight_decay
        As in `torch.optim.SGD`; momentum starts anew in every round.
    lr_decay, lr_decay_every
        The learning rate is multiplied by `lr_decay` after every `lr_decay_every` rounds.
    held_back
        Share of each client's validation samples that algorithms do not see: scores on them (`personal_held_*`) can
        be compared between methods that choose something on validation data and methods that do not. Left out, they
        see all of it.
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

    def __post_init__(self) -> None:
        check("local.lr", self.lr, 0 < self.lr < 1e38, "above 0, and no more than float32 holds")
        check("local.batch_size", self.batch_size, self.batch_size >= 0, "at least 1, or 0 for all data at once")
        check("local.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("local.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        check("local.lr_decay", self.lr_decay, 0 < self.lr_decay <= 1, "in (0, 1]")
        check("local.lr_decay_every", self.lr_decay_every, self.lr_decay_every >= 1, "at least 1 round")
        held = self.held_back
        check("local.held_back", held, held is None or 0 < held < 1, "above 0 and below 1, or left out")
        for name, value in (("steps", self.steps), ("epochs", self.epochs)):
            check(f"local.{name}", value, value is None or value >= 1, "at least 1")
        check(
            "local.epochs",
            self.epochs,
            None in (self.steps, self.epochs),
            "left out where local.steps is given",
        )

    def rate(self, round: int) -> float:
        """The learning rate in a round (rounds count from 1)."""
        return self.lr * float(self.lr_decay ** ((round - 1) // self.lr_decay_every))

    def default_steps(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of steps of each client that does not choose its own (20 where nothing is said)."""
        if self.epochs is None:
            return np.full(len(samples), 20 if self.steps is None else self.steps, np.int64)
        size = np.maximum(samples, 1) if self.batch_size == 0 else np.full(len(samples), self.batch_size)
        return np.asarray(self.epochs * -(-samples // size), np.int64)


@dataclass(frozen=True)
class Context:
    """What a client program knows besides its state and what was sent.

    Attributes
    ----------
    round
        The round that is running, from 1.
    lr
        The learning rate of this round.
    steps
        The number of local steps that the settings ask of this client (an integer tensor).
    samples
        The client's number of training samples (a tensor).
    batch_size
        Samples in a full batch of this client (a tensor).
    copy
        Which of the program's copies this is (a tensor), see `extras.SideBySide`.
    validation
        The client's validation data, where the program asked for it by `uses_validation`.
    """

    round: int
    lr: float
    local: Local
    steps: Tensor
    samples: Tensor
    batch_size: Tensor
    copy: Tensor
    validation: Validation | None = None

    def descend(
        self,
        carry: State,
        name: str,
        gradient: Tensor | Gradient,
        lr: float | None = None,
        proximal: tuple[float, Tensor] | None = None,
    ) -> None:
        """One step of SGD on `carry[name]`, in place, with the settings' momentum and weight decay.

        Engines hand every program a carry of its own, so changing it in place is safe, and saves a copy of all
        clients' parameters.

        Parameters
        ----------
        gradient
            A tensor; or the step's `grad`, which stands for its value at `carry[name]` and is faster: the engine need
            not put the gradients of all layers together in one vector.
        proximal
            λ and an anchor: adds λ (θ − anchor) to the gradient.
        """
        theta, rate = carry[name], self.lr if lr is None else lr
        if not isinstance(gradient, Tensor):
            if not (self.local.weight_decay or self.local.momentum):
                gradient.descend(theta, rate, proximal)
                return
            gradient = gradient(theta)
        if proximal is not None:
            gradient = gradient + proximal[0] * (theta - proximal[1])
        if self.local.weight_decay:
            gradient = gradient + self.local.weight_decay * theta
        if self.local.momentum:
            buffer = f"{name}.momentum"
            carry[buffer] = (
                carry[buffer].mul_(self.local.momentum).add_(gradient) if buffer in carry else gradient.clone()
            )
            gradient = carry[buffer]
        theta.sub_(gradient, alpha=rate)


@dataclass(frozen=True)
class JobInfo:
    """What an algorithm may need to know of a job before it starts.

    Attributes
    ----------
    layers
        Name and size of each piece of the parameter vector, in order: ("0.weight", 640), ("0.bias", 10), …
    clients
        The number of clients.
    local
        How clients train.
    classification
        Whether the model's outputs are the logits of classes.
    groups
        The group of each client (a device type, a region), where the federation has groups.
    """

    layers: tuple[tuple[str, int], ...]
    clients: int
    local: Local
    classification: bool
    groups: tuple[str, ...] | None = None


class Program:
    """A client program: begin, some steps, finish. Local training is one; so is what comes before evaluation."""

    uses_validation: ClassVar[bool] = False
    """Whether `begin` and `finish` need `ctx.validation`."""

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        raise NotImplementedError

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        raise NotImplementedError

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        raise NotImplementedError


@dataclass(frozen=True)
class About:
    """An algorithm in words.

    Parameters
    ----------
    name
        What users call it.
    paper
        Short citation.
    personalized
        What is called the personalized model.
    keeps
        What a client keeps between rounds.
    traffic
        What an active client sends up and gets down, in model sizes.
    newcomer
        How a client that joins after training gets its personalized model.
    """

    name: str
    paper: str
    personalized: str
    keeps: str = "nothing"
    traffic: tuple[str, str] = ("1", "1")
    newcomer: str = "trains once from the final server's message, as a client of the last round would"


@dataclass(frozen=True)
class Algorithm(Program):
    """Base class of algorithms. Subclasses override what differs from federated averaging."""

    about: ClassVar[About]
    name: ClassVar[str]
    """That of `about`."""

    def __init_subclass__(cls) -> None:
        if "about" in vars(cls):
            cls.name = cls.about.name

    @property
    def uplink(self) -> Uplink:
        """What goes up. A class may have a plain dictionary here, where it does not depend on hyper-parameters."""
        raise NotImplementedError

    def prepare(self, job: JobInfo) -> Self:
        """This algorithm, fitted to the job; or a ConfigError where its hyper-parameters do not fit."""
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"theta": theta0.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"theta": server["theta"]})

    def aggregate(self, server: State, uploads: Uploads) -> State:
        """The mean of each upload takes the place of what the server keeps by this name."""
        if seen := [name for name, how in self.uplink.items() if isinstance(how, Each)]:
            raise NotImplementedError(f"{type(self).__name__}: what does the server do with each {', '.join(seen)}?")
        return {**server, **{name: uploads.mean(name) for name in self.uplink if name in server}}

    def personal(self, own: State, sent: State) -> Tensor:
        raise NotImplementedError

    def global_model(self, server: State) -> Tensor | None:
        """The parameters of the one model that serves everybody, where the algorithm has one."""
        return server["theta"]

    def evaluation_program(self, last: bool) -> Program | None:
        """A program to run before personal models are evaluated (fine-tuning, adaptation, distillation).

        Its new client state goes to `personal` and is then dropped. `last` is true after the last round.
        """
        return None

    def report(self, own: State, sent: State) -> State:
        """Scalars about one client for the evaluation table (its uncertainty, its mixing weight, …)."""
        return {}


def check(key: str, value: Any, ok: bool, expected: str) -> None:
    """Raise a ConfigError that names the setting, its value and its range."""
    if not ok:
        raise ConfigError(f"{key} = {value!r}: must be {expected}")
