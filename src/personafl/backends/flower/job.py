"""What a run trains, as the server tells its sites: names and numbers that the site's own personafl makes sense of.

Nothing of it is executed. A site builds the model and the algorithm from its own installed package, by the same checks
as a config file has, and compares the initial weights and what the algorithm sends with what the server says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.algorithms.base import Sent
from personafl.algorithms.dry_run import blank_context
from personafl.algorithms.extras import trained_task
from personafl.algorithms.uploads import check_declared
from personafl.errors import ConfigError, PersonaflError
from personafl.inputs import Shape
from personafl.kernels.task import Task
from personafl.models import MODELS, LoRA, Model, initialize
from personafl.pretrained.backbone import Backbone
from personafl.registry import checked, choose_known
from personafl.settings import Local
from personafl.states import State
from personafl.tasks import TASKS, Classification, LearningTask, Regression
from personafl.training.job_info import job_info
from personafl.training.privacy import Privacy
from personafl.version import __version__

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The type and the shape of each tensor by its name."""


@dataclass(frozen=True)
class JobDescription:
    """What a run trains.

    Attributes
    ----------
    algorithm, model, local
        As tables of a config. A simulation may have a model and an algorithm of its own, which are not described.
    shape, outputs, classes
        Of a sample, or of each of its inputs by name; of a label; None for regression.
    clients, groups
        How many there are, and the group of each where they have groups.
    theta0
        The SHA-256 of the initial weights.
    privacy
        What clients do to their answers before they send them, as a table of a config.
    task
        As a table of a config, where it is not the one that classes, or their absence, stand for.
    backbone
        Name, SHA-256, pooling and normalize of the frozen backbone that sites send their samples through, if any.
    vectors
        The SHA-256 of the word vectors that the model takes, which sites have on their own disks; None for none.
    secure
        How answers are added up by secure aggregation, as a table of a config; None where each goes to the server.
    personafl
        The version that the server has.
    """

    seed: int
    algorithm: dict[str, Any]
    model: dict[str, Any]
    local: dict[str, Any]
    shape: Shape
    outputs: int
    classes: int | None
    clients: int
    groups: tuple[str, ...] | None
    theta0: str
    privacy: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    backbone: dict[str, Any] | None = None
    vectors: str | None = None
    secure: dict[str, Any] | None = None
    personafl: str = __version__

    def text(self) -> str:
        """As JSON; `read_job` is the inverse."""
        # What is left out is not said, so that runs that were begun before there was any of it go on.
        later = ("backbone", "vectors", "secure")
        said = {key: value for key, value in asdict(self).items() if key not in later or value is not None}
        return json.dumps(said, sort_keys=True)

    @property
    def run(self) -> str:
        """What distinguishes this run from others that a site takes part in; a resumed run has the same."""
        return sha256(replace(self, groups=None).text().encode()).hexdigest()[:16]

    def make_algorithm(self) -> Algorithm:
        """The algorithm with its hyper-parameters, from this machine's personafl."""
        made: Algorithm = choose_known("algorithm", self.algorithm, ALGORITHMS)
        return made

    def make_local(self) -> Local:
        """How clients train."""
        made: Local = checked(Local, "local", self.local)
        return made

    def make_privacy(self) -> Privacy | None:
        """Clipping and noise, where the run has any."""
        made: Privacy | None = checked(Privacy | None, "privacy", self.privacy)
        return made

    def make_model(self, site: str, weights: str | None) -> Model:
        """The settings of the model; where it is an adapter, to the weights that the site has on its own disk."""
        if not self.model:
            raise ConfigError("the server's model is not one of personafl's own: a federation needs a [model] by name")
        made: Model = choose_known("model", self.model, MODELS)
        if not isinstance(made, LoRA):
            return made
        if made.sha256 is None:
            raise ConfigError(f"site {site}: this run does not say which weights its adapters are for: model.sha256")
        if weights is None:
            raise ConfigError(
                f"site {site} has no weights for this run's adapters (SHA-256 {made.sha256}): name their folder, "
                "weights = …, in site.toml"
            )
        return replace(made, path=weights)  # whatever path the server may have said

    def make_task(self, constants: State, site: str = "", weights: str | None = None) -> Task:
        """The model with the initial weights that follow from the seed."""
        model = self.make_model(site, weights)
        try:
            module = initialize(model, self.shape, self.outputs, self.seed, constants)
        except PersonaflError as error:
            raise type(error)(f"site {site}: {error}" if isinstance(model, LoRA) else str(error)) from error
        return trained_task(self.make_algorithm(), Task(module, self.make_kind()))

    def check_backbone(self, site: str, found: Backbone | None) -> None:
        """Refuse features of another backbone than the run's: a site has its weights on its own disk."""
        if self.backbone is None and found is None:
            return
        if self.backbone is None or found is None:
            has, wants = (
                "no backbone" if table is None else f"the backbone {table['name']} (SHA-256 {table['sha256']})"
                for table in (None if found is None else found.table(), self.backbone)
            )
            raise ConfigError(f"site {site} has {has}, this run {wants}: see [backbone] in site.toml")
        for key, what in (("sha256", "SHA-256"), ("pooling", "pooling"), ("normalize", "normalize")):
            here, wanted = found.table()[key], self.backbone.get(key)
            if here != wanted:
                raise ConfigError(f"site {site}: its backbone {found.name} has {what} {here}, this run wants {wanted}")

    def make_kind(self) -> LearningTask:
        """What is learned, from this machine's personafl."""
        if self.task is None:
            return usual_task(self.classes)
        made: LearningTask = choose_known("task", self.task, TASKS)
        return made

    def prepare(self, algorithm: Algorithm, task: Task, local: Local) -> Algorithm:
        """The algorithm fitted to the run."""
        return algorithm.prepare(job_info(task, self.clients, local, self.groups))


@dataclass(frozen=True)
class Together:
    """What a site knows of the sum that its answer becomes part of.

    Attributes
    ----------
    threshold
        How many answers are in it at the least.
    noise_sharers
        How many sites are counted on for its noise.
    weight
        Which this site's answer is multiplied with, above 0 and at most 1.
    """

    threshold: int
    noise_sharers: int
    weight: float


@dataclass(frozen=True)
class Order:
    """What the server asks for.

    Attributes
    ----------
    round
        The round that is running, or that has just ended where it is about evaluation.
    accepted
        The last round in which the server took this site's answer; 0 for none.
    durable
        The same as the oldest checkpoint has it that the server may go back to.
    sent
        What the algorithm sends.
    theta0
        The initial weights, where they do not follow from the seed and this site may need them.
    together
        The sum that the answer becomes part of; None where the server gets it as it is.
    """

    job: JobDescription
    round: int
    accepted: int
    durable: int
    sent: Sent
    theta0: Tensor | None = None
    together: Together | None = None


def usual_task(classes: int | None) -> LearningTask:
    """What is learned where nothing is said."""
    return Regression() if classes is None else Classification()


def model_outputs(kind: LearningTask, classes: int | None, outputs: int) -> int:
    """How many outputs the model has, for labels of so many numbers.

    >>> model_outputs(Classification(), 10, 1), model_outputs(Regression(), None, 3)
    (10, 3)
    """
    return kind.outputs(torch.zeros(1, outputs), classes)


def read_job(text: str) -> JobDescription:
    """The job of a message, checked."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("the server's description of the run is not JSON") from None
    if isinstance(values, dict) and values.get("personafl") != __version__:
        raise ConfigError(f"the server has personafl {values.get('personafl')}, this site {__version__}: install that")
    made: JobDescription = checked(JobDescription, "job", values)
    return made


def fingerprint(theta: Tensor) -> str:
    """A SHA-256 of a vector."""
    return sha256(theta.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def upload_of(algorithm: Algorithm, local: Local, own: State, sent: State) -> State:
    """Something with the names, types and shapes of what a client with this state sends up; no data is looked at."""
    ctx = blank_context(algorithm, local)
    carry = algorithm.begin(own, sent, ctx)[0]
    up = algorithm.finish(own, {name: value.clone() for name, value in carry.items()}, sent, ctx)[1]
    check_declared(algorithm.name, up, algorithm.uplink)
    return up


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """The types and shapes of some tensors.

    >>> layout_of({"theta": torch.zeros(3)})
    {'theta': ('float32', (3,))}
    """
    return {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in state.items()}
