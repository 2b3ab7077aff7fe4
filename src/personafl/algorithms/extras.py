"""What some algorithms need beyond the contract: small classes to inherit from beside `Algorithm` or `Program`.

The framework asks for each with `isinstance`, by the functions below; who does not need one need not know of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from personafl.algorithms.base import Algorithm, Program
from personafl.algorithms.parameter_groups import Layers, last_layers
from personafl.algorithms.uploads import Sent
from personafl.kernels.task import Task
from personafl.states import State
from personafl.tasks import LearningTask


class SendsForEvaluation(ABC):
    """What is sent before models are evaluated differs from what is sent before training."""

    @abstractmethod
    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        """What `new_client`, `personal` and `report` get: as `send`, but nobody is about to train."""


class Welcomes(ABC):
    """A client that joins after training gets another message than a client of the last round would."""

    newcomer_rounds: ClassVar[int] = 1
    """How many rounds it takes part in, by itself."""

    @abstractmethod
    def welcome(self, server: State, upload: State) -> Sent:
        """What the server sends to it (`each` has one row).

        `upload` is what the newcomer sent in the round before, or empty in its first.
        """


class ReportsServer(ABC):
    """Each evaluation writes tensors about the federation to the run folder."""

    @abstractmethod
    def report_server(self, server: State) -> State:
        """These tensors, by name."""


class SeveralBatches(ABC):
    """Each step of the program draws several batches; `grad(theta, batch=i)` takes the i-th."""

    @property
    @abstractmethod
    def batches_per_step(self) -> int:
        """How many."""


class SideBySide(ABC):
    """The program runs several times for each client, `ctx.copy` says which time it is; one of them is picked."""

    @property
    @abstractmethod
    def copies(self) -> int:
        """How many times."""

    @abstractmethod
    def pick(self, own: State, up: State) -> State:
        """A client's new state from its state and what its copies sent up (a leading axis of `copies`)."""


class ForSomeModels:
    """Fits models with layers of a certain kind only: a comparison of all algorithms leaves it out."""


class WrapsModule(ABC):
    """The model is the user's module inside another one: several copies of it that vote, a memory beside it."""

    @abstractmethod
    def wrapped(self, module: nn.Module, kind: LearningTask) -> nn.Module:
        """The module that is trained, evaluated and saved; its parameters are the vector of this algorithm."""


class HasHead(ABC):
    """A part of the model is the head, for this algorithm and for `local.groups`."""

    @property
    @abstractmethod
    def head_pieces(self) -> tuple[bool, ...]:
        """Which pieces of the parameter vector belong to it."""


class TwoSums(ABC):
    """What the server needs of single answers are sums, twice: the second time of what follows from the first.

    With secure aggregation a client adds `first_sums` to everybody's, is told what follows, and adds `second_sums`.
    `aggregate` is then given the sums, as `uploads.values` of one group.
    """

    @property
    @abstractmethod
    def why_no_sums(self) -> str:
        """Why sums do not do with these settings; empty where they do."""

    @abstractmethod
    def first_sums(self, up: State, sent: State) -> State:
        """What a client adds first, from what it would send."""

    @abstractmethod
    def tell(self, first: State) -> State:
        """What the server tells everybody, from the first sums."""

    @abstractmethod
    def second_sums(self, first: State, told: State) -> State:
        """What a client adds then, from what it added first and was told."""


def trained_task(algorithm: Algorithm, task: Task) -> Task:
    """What the algorithm trains: the task with the user's module, or with the one that the algorithm puts around it."""
    if not isinstance(algorithm, WrapsModule) or task.inner is not None:
        return task
    made = Task(algorithm.wrapped(task.template, task.kind), task.kind)
    made.inner, made.precision = task.template, task.precision
    return made


def sent_for_evaluation(algorithm: Algorithm, server: State, ids: Tensor) -> Sent:
    """What these clients get before their models are evaluated."""
    if isinstance(algorithm, SendsForEvaluation):
        return algorithm.send_for_evaluation(server, ids)
    return algorithm.send(server, ids)


def sent_to_newcomer(algorithm: Algorithm, server: State, upload: State) -> Sent:
    """What a client gets that joins after training, and sent `upload` in the round before."""
    if isinstance(algorithm, Welcomes):
        return algorithm.welcome(server, upload)
    return algorithm.send(server, torch.zeros(1, dtype=torch.int64))


def newcomer_rounds(algorithm: Algorithm) -> int:
    """How many rounds a client trains that joins after training."""
    return algorithm.newcomer_rounds if isinstance(algorithm, Welcomes) else 1


def server_report(algorithm: Algorithm, server: State) -> State:
    """What an evaluation writes down of the server."""
    return algorithm.report_server(server) if isinstance(algorithm, ReportsServer) else {}


def batches_per_step(program: Program) -> int:
    """How many batches each step draws."""
    return program.batches_per_step if isinstance(program, SeveralBatches) else 1


def copies(program: Program) -> int:
    """How often the program runs for each client."""
    return program.copies if isinstance(program, SideBySide) else 1


def head_of(program: Program, layers: Layers) -> tuple[bool, ...]:
    """Which pieces of the parameter vector are the head: what the algorithm calls so, else the last layer."""
    return program.head_pieces if isinstance(program, HasHead) else last_layers(layers)


def needs_validation(algorithm: Algorithm) -> bool:
    """Whether any of the algorithm's programs looks at validation data."""
    last = algorithm.evaluation_program(True)
    return algorithm.uses_validation or (last is not None and last.uses_validation)
