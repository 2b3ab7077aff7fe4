"""The contract between algorithms and engines.

An algorithm is a frozen dataclass of its hyper-parameters with pure methods, each written for ONE client:

=============================== ======== =====================================================================
`new_server(theta0, clients)`   once     what the server keeps between rounds
`new_client(theta0)`            once     what a client keeps between rounds
`send(server, ids)`             server   what goes down: to everybody, and where needed to each client
`begin(own, sent, ctx)`         client   the carry of local training, and the number of steps of this client
`step(carry, sent, grad, ctx)`  client   one local step; `grad(theta)` is the gradient on this step's batch
`finish(own, carry, sent, ctx)` client   the client's new state, and what goes up
`aggregate(server, uploads)`    server   the new server state, from whatever subset of clients answered
`personal(own, sent)`           client   the parameters that this algorithm calls the personalized model
=============================== ======== =====================================================================

State and messages are flat `dict[str, Tensor]`. No algorithm imports an engine, a file system or a network.
`aggregate` may change the server state that it is given (a matrix of all clients' models need not be copied).
`begin`, `step`, `finish`, `personal` and `report` run under `torch.func.vmap` on the stacked engine: no `if` on
a tensor's value there (use `torch.where`), no `.item()`, no random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from personafl.settings import Local
from personafl.states import State

Weights = Literal["samples", "equal"]


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
        Which of the program's `copies` this is (a tensor), see `Program.copies`.
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
class Sent:
    """What the server sends: `shared` goes to everybody; row i of every tensor in `each` goes to client i."""

    shared: State
    each: State = field(default_factory=dict)

    def bytes_per_client(self) -> int:
        return _bytes(self.shared) + sum(t[:1].numel() * t.element_size() for t in self.each.values())


@dataclass(frozen=True)
class Uploads:
    """What came back in a round: `values[name]` has one row for each client in `ids`.

    Where it passed through several hands and `aggregate` takes nothing but means (`Algorithm.averages`), a row may be
    the mean of several clients: `condensed` says by which weights, `samples` has the sum of theirs, `counts` how many.

    `most` is the largest share that one of them may have in an aggregate, where they are not trusted with more.
    """

    ids: Tensor
    samples: Tensor
    values: State
    condensed: Weights | None = None
    counts: Tensor | None = None
    most: float = 1.0

    def __getitem__(self, name: str) -> Tensor:
        if self.condensed is not None:
            raise TypeError(f"these uploads are condensed: {name!r} has no row for each client, only a mean")
        return self.values[name]

    def __len__(self) -> int:
        return len(self.ids)

    def mean(self, name: str, weights: Weights = "equal") -> Tensor:
        """Σ p_i value_i, with p_i equal, or in proportion to the clients' numbers of training samples."""
        if self.condensed not in (None, weights):
            raise TypeError(f"these uploads are condensed by {self.condensed!r}: they have no mean by {weights!r}")
        counts = torch.ones(len(self.samples)) if self.counts is None else self.counts
        share = self.limit((self.samples if weights == "samples" else counts).double())
        share = (share / share.sum()).to(self.values[name])
        averaged: Tensor = torch.tensordot(share, self.values[name], dims=1)
        return averaged

    def limit(self, weights: Tensor) -> Tensor:
        """Weights of which none is more than `most` of their sum: those that are above become as large as allowed.

        As they are, to the bit, where none is above. Where there are too few for all to be below, all are the same.

        >>> up = Uploads(torch.arange(3), torch.ones(3), {}, most=0.5)
        >>> up.limit(torch.tensor([2.0, 3.0, 900.0])).tolist()
        [2.0, 3.0, 5.0]
        """
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

    def condense(self, weights: Weights) -> Uploads:
        """One row that stands for all of these clients, where only the mean by these weights is asked for.

        >>> up = Uploads(torch.tensor([3, 8]), torch.tensor([30, 10]), {"theta": torch.tensor([[0.0], [4.0]])})
        >>> one = up.condense("samples")
        >>> one.values["theta"].tolist(), one.samples.tolist(), len(one)
        ([[1.0]], [40], 2)
        """
        values = {name: self.mean(name, weights)[None] for name in self.values}
        return Uploads(self.ids, self.samples.sum()[None], values, weights, torch.tensor([len(self)]))

    @classmethod
    def join(cls, parts: Sequence[Uploads]) -> Uploads:
        """The uploads of several groups of clients as one; all of them condensed alike."""
        first = parts[0]
        counts = None if first.counts is None else torch.cat([part.counts for part in parts if part.counts is not None])
        return cls(
            torch.cat([part.ids for part in parts]),
            torch.cat([part.samples for part in parts]),
            {name: torch.cat([part.values[name] for part in parts]) for name in first.values},
            first.condensed,
            counts,
        )

    def bytes(self) -> int:
        return _bytes(self.values)


def _bytes(state: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in state.values())


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

    @property
    def copies(self) -> int:
        """Run the program this many times for each client, side by side; `pick` makes one of them."""
        return 1

    @property
    def batches_per_step(self) -> int:
        """How many batches each step draws; `grad(theta, batch=i)` takes the i-th."""
        return 1

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        raise NotImplementedError

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        raise NotImplementedError

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        raise NotImplementedError

    def pick(self, own: State, up: State) -> State:
        """A client's new state from its state and what its copies sent up (a leading axis of `copies`)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Algorithm(Program):
    """Base class of algorithms. Subclasses override what differs from federated averaging."""

    name: ClassVar[str]
    """What users call it."""
    paper: ClassVar[str]
    """Short citation."""
    personalized: ClassVar[str]
    """What is called the personalized model, in a few words."""
    keeps: ClassVar[str] = "nothing"
    """What a client keeps between rounds, in a few words."""
    traffic: ClassVar[tuple[str, str]] = ("1", "1")
    """What an active client sends up and gets down, in model sizes."""
    newcomer: ClassVar[str] = "trains once from the final server's message, as a client of the last round would"
    """How a client that joins after training gets its personalized model."""

    newcomer_rounds: ClassVar[int] = 1
    """How many rounds a client that joins after training takes part in, by itself."""

    private_uploads: ClassVar[dict[str, str] | None] = None
    """What goes up, each with the name of what was sent that it differs from: `Privacy` clips the difference and adds
    noise. None where that does not do."""
    not_private: ClassVar[str] = "it does not say what its uploads are measured against (private_uploads)"
    """Why clipping and noise do not do, where `private_uploads` is None."""
    sees_each: ClassVar[str] = ""
    """Why the server must see the answer of each client; empty where their sum would do."""

    def prepare(self, job: JobInfo) -> Self:
        """This algorithm, fitted to the job; or a ConfigError where its hyper-parameters do not fit."""
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"theta": theta0.clone()}

    def new_client(self, theta0: Tensor) -> State:
        return {}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"theta": server["theta"]})

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        """What `personal` and `report` get: as `send`, but nobody is about to train."""
        return self.send(server, ids)

    def aggregate(self, server: State, uploads: Uploads) -> State:
        raise NotImplementedError

    @property
    def averages(self) -> Weights | None:
        """The weights of `uploads.mean`, where `aggregate` asks nothing else of uploads but that and their number.

        What many clients send can then be averaged on the way. A class that changes `aggregate` says this anew.
        """
        return None

    @property
    def condensable(self) -> Weights | None:
        """`averages`, unless a subclass of the class that says so has another `aggregate`."""
        order = type(self).__mro__
        said, done = (next(i for i, c in enumerate(order) if name in vars(c)) for name in ("averages", "aggregate"))
        return self.averages if said <= done else None

    def personal(self, own: State, sent: State) -> Tensor:
        raise NotImplementedError

    def global_model(self, server: State) -> Tensor | None:
        """The parameters of the one model that serves everybody, where the algorithm has one."""
        return server["theta"]

    def welcome(self, server: State, upload: State) -> Sent:
        """What the server sends to a client that joins after training (`each` has one row).

        `upload` is what the newcomer sent in the round before, or empty in its first.
        """
        return self.send(server, torch.zeros(1, dtype=torch.int64))

    def join(self, theta0: Tensor, sent: State) -> State:
        """The state of a client that joins after training, from what the final server sends."""
        return self.new_client(sent.get("theta", theta0))

    @property
    def needs_validation(self) -> bool:
        """Whether any of the programs looks at validation data."""
        last = self.evaluation_program(True)
        return self.uses_validation or (last is not None and last.uses_validation)

    def evaluation_program(self, last: bool) -> Program | None:
        """A program to run before personal models are evaluated (fine-tuning, adaptation, distillation).

        Its new client state goes to `personal` and is then dropped. `last` is true after the last round.
        """
        return None

    def report(self, own: State, sent: State) -> State:
        """Scalars about one client for the evaluation table (its uncertainty, its mixing weight, …)."""
        return {}

    def report_server(self, server: State) -> State:
        """Tensors about the federation that each evaluation writes to the run folder (collaboration weights, …)."""
        return {}
