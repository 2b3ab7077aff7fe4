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

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from personafl.algorithms.optimizers import clipped, update
from personafl.algorithms.parameter_groups import last_layers, rate_factors
from personafl.algorithms.uploads import Each, Mean, Sent, Uplink, Uploads, Weights
from personafl.checks import check_type
from personafl.errors import ConfigError
from personafl.registry import require_known_key
from personafl.settings import Local, check
from personafl.states import State

__all__ = [
    "About",
    "Algorithm",
    "Context",
    "Each",
    "Gradient",
    "JobInfo",
    "Mean",
    "Program",
    "Samples",
    "Sent",
    "Uplink",
    "Uploads",
    "Weights",
]  # fmt: skip


class Gradient(Protocol):
    """What a step sees of its client's data: the batches that were drawn for it."""

    def __call__(self, theta: Tensor, batch: int = 0, objective: Any = None, **extra: Tensor) -> Tensor:
        """Gradient of the mean loss at `theta` on one of this step's batches.

        `objective(outputs, y, **extra)` takes the place of the loss, or comes to it where it has the attribute
        `added_to_loss = True`; with `uses_features = True` it is called with `features=…` as well.
        """
        ...

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """θ ← θ − lr (gradient at θ on this step's first batch + λ (θ − anchor)), in place."""
        ...

    def count(self, batch: int = 0) -> Tensor:
        """How many samples one of this step's batches has; on average, where they are drawn independently."""
        ...

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """The model's outputs at `theta` on one of this step's batches, in evaluation mode."""
        ...

    def features(self, theta: Tensor, batch: int = 0) -> Tensor:
        """The features (batch, d) likewise: see `local.features`."""
        ...


class Samples(Protocol):
    """All of a client's training or validation samples, in evaluation mode; means are 0 for a client without any."""

    def __call__(self, theta: Tensor) -> State:
        """Means over the samples of `loss` and of each metric."""
        ...

    def mean(self, function: Any, theta: Tensor, **extra: Tensor) -> Tensor:
        """The mean over the samples of `function(outputs, y, **extra)`, which gives a value or a tensor for each.

        With the attribute `uses_features = True` it is called with `features=…` as well; with `couples_samples = True`
        it gets `weight` (1 for a sample, 0 for padding) and gives the mean itself. The shape of the result must not
        follow from that of the outputs: what a client sends is also asked for without data (`dry_run`), and then the
        model puts out a single number (and so many features as the function's attribute `width` says).
        `JobInfo.shapes` has what is needed.
        """
        ...

    def squares(self, theta: Tensor) -> Tensor:
        """The mean over the samples of the squares of each sample's gradient, as steps have it (with dropout).

        It is the diagonal of the empirical Fisher information. A ConfigError where no sample has a gradient of its own.
        """
        ...


@dataclass(frozen=True)
class Context:
    """What a client program knows besides its state and what was sent.

    Attributes
    ----------
    round
        The round that is running, from 1.
    lr
        The learning rate of this round, or of this step where the schedule goes by steps (then it may be a tensor).
    steps
        The number of local steps that the settings ask of this client (an integer tensor).
    samples
        The client's number of training samples (a tensor).
    batch_size
        Samples in a full batch of this client (a tensor).
    copy
        Which of the program's copies this is (a tensor), see `extras.SideBySide`.
    validation
        The client's validation data, for programs that choose something on it, where the program asked for it by
        `uses_validation`; without what `held_back` keeps.
    training
        All of the client's training data, where the program asked for it by `uses_training`.
    factors
        Of the learning rate, for each parameter (`local.groups`); None where all have the same.
    step
        In `step`: which of the program's steps this is, from 0; a number that is the same for all clients.
    """

    round: int
    lr: float | Tensor
    local: Local
    steps: Tensor
    samples: Tensor
    batch_size: Tensor
    copy: Tensor
    validation: Samples | None = None
    training: Samples | None = None
    factors: Tensor | None = None
    step: int = 0

    @property
    def rates(self) -> float | Tensor:
        """The learning rate of every parameter: `lr`, or a vector where `local.groups` has factors."""
        return self.lr if self.factors is None else self.lr * self.factors

    def at_step(self, step: int, steps: int | Tensor) -> Context:
        """This context at a step (from 0) of so many."""
        by_rounds = self.local.schedule_over == "rounds"
        return replace(self, step=step, lr=self.lr if by_rounds else self.local.step_rate(step, steps))

    def descend(
        self,
        carry: State,
        name: str,
        gradient: Tensor | Gradient,
        lr: float | Tensor | None = None,
        proximal: tuple[float | Tensor, Tensor] | None = None,
    ) -> None:
        """One step of the settings' optimizer on `carry[name]`, in place; its state is in the carry too.

        Engines hand every program a carry of its own, so changing it in place is safe, and saves a copy of all
        clients' parameters.

        Parameters
        ----------
        gradient
            A tensor; or the step's `grad`, which stands for its value at `carry[name]` and is faster: the engine need
            not put the gradients of all layers together in one vector.
        lr
            Another learning rate than the settings'; their schedule does not count for it.
        proximal
            λ and an anchor: adds λ (θ − anchor) to the gradient.
        """
        theta, local, rate = carry[name], self.local, self.lr if lr is None else lr
        if not isinstance(gradient, Tensor):
            numbers = not isinstance(rate, Tensor) and (proximal is None or not isinstance(proximal[0], Tensor))
            if numbers and local.plain and self.factors is None:
                gradient.descend(theta, rate, proximal)  # type: ignore[arg-type]
                return
            gradient = gradient(theta)
        if proximal is not None:
            gradient = gradient + proximal[0] * (theta - proximal[1])
        if local.clip_norm is not None:
            gradient = clipped(gradient, local.clip_norm)
        update(carry, name, gradient, rate if self.factors is None else rate * self.factors, local)


@dataclass(frozen=True)
class JobInfo:
    """What an algorithm may need to know of a job before it starts.

    Attributes
    ----------
    layers
        Name and size of each piece of the parameter vector, in order: ("0.weight", 640), ("0.bias", 10), …
    kinds
        The class of the layer that each piece belongs to: "Linear", "BatchNorm2d", …
    clients
        The number of clients.
    local
        How clients train.
    classification
        Whether the model's outputs are the logits of classes.
    groups
        The group of each client (a device type, a region), where the federation has groups.
    shapes
        The shape of each piece of the parameter vector.
    objective
        The task's loss: `(outputs, y)` to a value for each sample.
    """

    layers: tuple[tuple[str, int], ...]
    clients: int
    local: Local
    classification: bool
    groups: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    objective: Any = None

    def __post_init__(self) -> None:
        rate_factors(self.layers, self.local.groups, last_layers(self.layers))  # every name of a group is a parameter's

    @property
    def largest_lr(self) -> float:
        """The largest learning rate of a parameter."""
        factors = rate_factors(self.layers, self.local.groups, last_layers(self.layers))
        return self.local.lr * max(factors, default=1.0)

    def require_sgd(self, why: str, *taken: str) -> None:
        """Refuse local training that is more than SGD at one rate in a round, except for the settings that are taken.

        Parameters
        ----------
        why
            What in the algorithm needs it.
        taken
            Keys of `[local]` that are no obstacle, see `Local.beyond`.
        """
        if found := self.local.beyond(*taken):
            key, value, expected = found
            check(key, value, False, f"{expected} for {why}")


class Program:
    """A client program: begin, some steps, finish. Local training is one; so is what comes before evaluation."""

    uses_validation: ClassVar[bool] = False
    """Whether `begin` and `finish` need `ctx.validation`."""

    uses_training: ClassVar[bool] = False
    """Whether they need `ctx.training`."""

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        """The carry of a client's local training, and how many steps it takes.

        Parameters
        ----------
        own
            What the client keeps.
        sent
            What the server sent: the shared part, and where there is one the client's own.
        ctx
            Settings, numbers of samples and steps, and the data that the program asked for.
        """
        raise NotImplementedError

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        """The carry after one local step; `grad(theta)` is the gradient at `theta` on the batch of this step.

        Left as it is, a step of the settings' optimizer on `carry["theta"]`, and nothing else: of a program that has no
        step of its own, engines may take all steps at once.
        """
        ctx.descend(carry, "theta", grad)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        """The client's new state, and what it sends up."""
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

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Check what is given before anything is computed with it: known settings, numbers where numbers belong."""
        owner: Any = next(kind for kind in cls.__mro__ if "__init__" in vars(kind))
        made = vars(owner).get("__dataclass_params__")
        if made is None or not made.init:  # somebody wrote it, and it checks what it takes
            return super().__new__(cls)
        known = {field.name: str(field.type) for field in fields(owner) if field.init}
        if len(values) > len(known):
            raise ConfigError(f"{cls.__name__} takes {len(known)} settings, not {len(values)}: {', '.join(known)}")
        for key in settings:
            require_known_key("algorithm.", key, list(known))
        for key, value in {**dict(zip(known, values, strict=False)), **settings}.items():
            check_type(f"algorithm.{key}", known[key], value)
        return super().__new__(cls)

    @property
    def uplink(self) -> Uplink:
        """What goes up. A class may have a plain dictionary here, where it does not depend on hyper-parameters."""
        raise NotImplementedError

    def prepare(self, job: JobInfo) -> Self:
        """This algorithm, fitted to the job; or a ConfigError where its hyper-parameters do not fit."""
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        """What the server keeps, before the first round of so many clients."""
        return {"theta": theta0.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        """What a client keeps, made when it is first seen."""
        return {}

    def send(self, server: State, ids: Tensor) -> Sent:
        """What goes down to these clients: a shared part, and where needed a row for each of them."""
        return Sent({"theta": server["theta"]})

    def aggregate(self, server: State, uploads: Uploads) -> State:
        """The mean of each upload takes the place of what the server keeps by this name."""
        if seen := [name for name, how in self.uplink.items() if isinstance(how, Each)]:
            raise NotImplementedError(f"{type(self).__name__}: what does the server do with each {', '.join(seen)}?")
        return {**server, **{name: uploads.mean(name) for name in self.uplink if name in server}}

    def personal(self, own: State, sent: State) -> Tensor:
        """The personalized model (P,) of a client."""
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
