"""A run on disk: its tables, its models, and personalized models for people who were not there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors.torch import save_file
from torch import Tensor, nn

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.algorithms.extras import trained_task
from personafl.checks import path_of
from personafl.engines.loop import LoopEngine
from personafl.errors import ConfigError, DataError, ModelError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.federation.scaling import standardized_as
from personafl.files import write_atomically
from personafl.inputs import Inputs, read_shape, shape_of, shape_text
from personafl.kernels.task import LOSSES, Task
from personafl.metrics.inputs import Floats
from personafl.models import MODELS, LoRA, initialize
from personafl.notebook import card, curve
from personafl.pretrained.backbone import Backbone, PretrainedModel
from personafl.registry import Registry, checked, choose_known
from personafl.runs.backbones import RAW, RawData, pairs_with_tokens, run_backbone, with_tokens
from personafl.runs.bounds import check_settings, check_size, described
from personafl.runs.modules import check_fits, how_to_give
from personafl.runs.plots import RunPlots, curve_of
from personafl.runs.tables import NO_SCORE, RunTables
from personafl.settings import Local
from personafl.states import State
from personafl.storage import checkpoint
from personafl.storage.folder import RunFolder
from personafl.storage.reading import open_tensors, parsed, read_json, read_tensors
from personafl.tasks import TASKS, LearningTask, OwnTask
from personafl.training.arguments import algorithm_of, check_model
from personafl.training.newcomers import features_as, newcomer_federation, personalize_newcomers

PERSONAL = "personal.safetensors"
NOT_FINISHED = "the run is not finished; continue it with resume=True (--resume on the command line)"


class Run(RunTables):
    """What `train` returns and `load` finds again.

    Parameters
    ----------
    path
        The run folder.
    module
        The model's module, for a run whose model is not one of personafl's own.
    algorithm
        The algorithm, for a run whose algorithm is not one of personafl's own.
    backbone
        The frozen backbone, or the path of its weights, for a run on features of one.
    """

    def __init__(
        self,
        path: str | Path,
        module: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        task: Task | None = None,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
        backbone: nn.Module | str | Path | None = None,
    ) -> None:
        if module is not None:
            check_model(module)
        super().__init__(RunFolder(path_of(path)))
        self._module, self._task, self._backbone = module, task, backbone
        self._algorithm = None if algorithm is None else algorithm_of(algorithm)
        self._temporary = temporary  # deleted with this object

    def __repr__(self) -> str:
        title, facts = self._facts()
        return "\n".join([title, *(f"  {name:7} {fact}" for name, fact in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        values = curve_of(self, self.primary, "personal")[1].tolist() if self.measures else []
        drawn = (
            curve(values, f"{self.primary.label} of the clients' models, over the rounds") if len(values) > 1 else ""
        )
        return card(title, facts, drawn)

    @property
    def plot(self) -> RunPlots:
        """Pictures by matplotlib: `run.plot.curves()`, `run.plot.clients()`, `run.plot.gains()`."""
        return RunPlots(self)

    def _facts(self) -> tuple[str, dict[str, str]]:
        done, wanted = len(self.rounds()), self.manifest["rounds"]
        name, clients = self.manifest["algorithm"]["name"], self.manifest["resolved"]["clients"]
        last = self._evaluation()
        names = [*(measure.name for measure in self.measures[:1]), "loss"]
        shown = [f"{who}_{name}" for who in ("personal", "global") for name in names]
        score = ", ".join(f"{key} {last[key]:.4g}" for key in dict.fromkeys(shown) if last.get(key) is not None)
        score += f" (test data, after round {last['round']})" if score else NO_SCORE if done else "none yet"
        kept = " (temporary, deleted with this object: out=… keeps it)" if self._temporary else ""
        then = "run.clients(), run.personal(client), run.personalize(x, y)" if self.complete else NOT_FINISHED
        title = f"Run of {name}: {done} of {wanted} rounds, {clients} clients, seed {self.manifest['seed']}"
        return title, {"score": score, "folder": f"{self.path}{kept}", "next": then}

    # --- models ----------------------------------------------------------------------------------------------

    def personal(self, client: str | int) -> nn.Module:
        """The personalized model of a client, as an ordinary module in evaluation mode.

        An integer stands for the id that is written like it.
        In a large federation (see `Schedule.models_mb`) clients that were never active share one.
        """
        client = str(client)
        with self._models("personal") as file:
            ids = parsed((file.metadata() or {}).get("clients", "[]"), list[str], self.folder.models / PERSONAL)
            if client not in ids:
                return self._other(client, ids)
            row = ids.index(client)
            state = {name: file.get_slice(name)[row] for name in list(file.keys())}
        return self._whole(self._module_of(state, PERSONAL))

    def _module_of(self, state: State, file: str) -> nn.Module:
        """The module with these tensors, if they are those of the run's model."""
        wanted = {name: tuple(value.shape) for name, value in self.task.template.state_dict().items()}
        for name, value in state.items():
            if wanted.get(name) != tuple(value.shape):
                raise RunError(
                    f"{self.folder.models / file} is of another model: its {name} has the shape {tuple(value.shape)}, "
                    f"expected {wanted.get(name, 'no such tensor')}"
                )
        if lacking := [name for name in self.task.names if name not in state]:
            raise RunError(f"{self.folder.models / file} is of another model: it lacks {lacking[0]}")
        return self.task.module_of({name: value.float() for name, value in state.items()})

    def _other(self, client: str, ids: list[str]) -> nn.Module:
        """The model of a client that models/personal.safetensors leaves out."""
        path = self.folder.models / "others.json"
        self.folder.check_intact("models/others.json")
        others = read_json(path, list[str]) if path.exists() else []
        if client not in others:
            raise DataError(f"{self.path} has no client {client!r}; the first are {', '.join((ids or others)[:3])}")
        if not (self.folder.models / "others.safetensors").exists():
            raise RunError(
                f"{self.path} keeps no model of client {client!r}, which was never active: make one from its data with "
                "personalize, or run with a larger models_mb"
            )
        return self._shared("others")

    def global_model(self) -> nn.Module:
        """The model that serves everybody, where the algorithm has one."""
        if not (self.folder.models / "global.safetensors").exists() and self.complete:
            raise RunError(f"{self.manifest['algorithm']['name']} has no global model")
        return self._shared("global")

    def _shared(self, name: str) -> nn.Module:
        """A model that several clients have."""
        with self._models(name) as file:
            state = {tensor: file.get_tensor(tensor) for tensor in list(file.keys())}
        return self._whole(self._module_of(state, f"{name}.safetensors"))

    def personalize(self, x: Any, y: ArrayLike | Tensor) -> nn.Module:
        """A personalized model for somebody who was not there for the training, from their own data.

        The newcomer receives what the server would send now, trains as the algorithm's `newcomer` rule says, and
        nothing of the run is changed.

        Parameters
        ----------
        x, y
            Arrays as the federation was made of: one, several by name, or lists of samples of unequal length.
        """
        federation = self.newcomers({"newcomer": (x, y)})
        return self._whole(self.task.module(self.personalize_all(federation)[0]))

    def features(self, x: Any) -> Inputs:
        """Samples as the models want them: filled in and standardized, where the run's data was.

        `run.personal(client)(run.features(x))` are a model's outputs for samples as they were measured. Texts become
        the tokens of the run's backbone.
        """
        if self.pretrained is None:
            return features_as(x, self.manifest["resolved"], self.constants)
        return features_as(
            with_tokens(x, self.pretrained, lambda: self.backbone), self.pretrained.resolved, self.pretrained.constants
        )

    def newcomers(self, data: dict[str, Any]) -> Federation:
        """The data of newcomers {id: (x, y)}, checked against the model of the run."""
        resolved = self.manifest["resolved"]
        if self.pretrained is None:
            return newcomer_federation(data, self.algorithm, resolved, self.constants)
        raw = self.pretrained
        brought = {client: pairs_with_tokens(each, raw, lambda: self.backbone) for client, each in data.items()}
        # Nobody but the sites of a real federation knows what its samples are: there any shape is taken.
        asked = {key: value for key, value in resolved.items() if key != "input_shape"} | raw.resolved
        made = newcomer_federation(brought, self.algorithm, asked, raw.constants)
        made = made.through(self.backbone, cache=False, progress=False)
        if shape_of(made.x) != read_shape(resolved["input_shape"]):
            found, wanted = shape_text(shape_of(made.x)), shape_text(read_shape(resolved["input_shape"]))
            raise ModelError(f"backbone {self.backbone.name} gives features of shape {found}, the model wants {wanted}")
        return standardized_as(made, self.constants)

    def personalize_all(self, federation: Federation) -> Tensor:
        """As `personalize`, for all newcomers of a federation: a vector for each, as `Task.module` takes it."""
        found = checkpoint.latest(self.folder.checkpoints, clients=False)
        if found is None:
            raise RunError(f"{self.path} has no checkpoint yet: nothing to personalize from")
        clients = int(self.manifest["resolved"]["clients"])
        return personalize_newcomers(self.algorithm, self.newcomer_engine(federation), found, clients)

    def newcomer_engine(self, federation: Federation) -> LoopEngine:
        """An engine with the settings that the run's clients trained by; newcomers choose on all validation data."""
        check_settings(self.path, "local", self.manifest.get("local", {}))
        local = replace(checked(Local, "local", self.manifest.get("local", {})), held_back=None)
        return LoopEngine(self.task, federation, local, int(self.manifest["seed"]))

    def save_models(self, path: Path, theta: Tensor, clients: Sequence[str]) -> None:
        """Write models (K, P) in the form of models/personal.safetensors: parameters with an axis for the clients."""
        tensors = self.task.state_dict(theta)
        metadata = {"clients": json.dumps(list(clients))}  # several keys would come in an order that changes
        write_atomically(path, lambda to: save_file(tensors, to, metadata))

    def write_newcomers(self, path: Path, federation: Federation) -> dict[str, Floats]:
        """Personalize for all newcomers of a federation and write their models.

        Returns
        -------
        dict
            What `Engine.evaluate` says of them, on the test samples that they brought.
        """
        models = self.personalize_all(federation)
        self.save_models(path, models, federation.ids)
        return self.newcomer_engine(federation).evaluate(models, np.arange(len(federation)), "test")

    # --- what the run was made of ----------------------------------------------------------------------------

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its hyper-parameters."""
        if self._algorithm is None:
            found: Algorithm = self._known("algorithm", ALGORITHMS)
            self._algorithm = found
        return self._algorithm

    def _known(self, kind: str, registry: Registry) -> Any:
        """What run.toml says of an algorithm or a model, where its name is known here. Nothing else is imported."""
        table = self.manifest.get(kind)
        if isinstance(table, Mapping):
            table = {key: value for key, value in table.items() if (kind, key) != ("model", "weights")}
        check_settings(self.path, kind, table)
        try:
            return choose_known(kind, table, registry)
        except ConfigError as error:
            give = how_to_give(self.manifest, self.path) if kind == "model" else f"load_run(…, {kind}=…) in Python"
            raise RunError(f"{self.path}: {error}. Give it: {give}") from error

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen backbone whose features the run's models take, its hash compared with that of the run."""
        return run_backbone(self.path, self.manifest, self._backbone)

    def _whole(self, head: nn.Module) -> nn.Module:
        """What a run hands out: a model that takes samples, with the backbone where there is one."""
        return head if self.pretrained is None else PretrainedModel(self.backbone, head, self.constants)

    @property
    def constants(self) -> dict[str, Tensor]:
        """What the data had for the model, such as word vectors; nothing for most data."""
        return {name: value for name, value in self._tables().items() if not name.startswith(RAW)}

    @cached_property
    def pretrained(self) -> RawData | None:
        """What samples are before they go through the run's backbone; None for a run without one."""
        if "backbone" not in self.manifest:
            return None
        constants = {n.removeprefix(RAW): value for n, value in self._tables().items() if n.startswith(RAW)}
        return RawData(self.manifest["resolved"].get("raw", {}), constants)

    @property
    def taken(self) -> dict[str, Any]:
        """What run.toml says of the samples that models take: `input_shape` and `input_dtype`."""
        resolved: dict[str, Any] = self.manifest["resolved"]
        return resolved if self.pretrained is None else self.pretrained.resolved

    def _tables(self) -> dict[str, Tensor]:
        path = self.folder.models / "tables.safetensors"
        if path.exists():
            self.folder.check_intact("models/tables.safetensors")
        return read_tensors(path) if path.exists() else {}

    @property
    def task(self) -> Task:
        """The model with its loss and metrics."""
        if self._task is None:
            module = self._module
            if module is None:
                model = self.manifest.get("model", {})
                if "class" in model and "name" not in model:  # it was made in Python
                    give = how_to_give(self.manifest, self.path)
                    raise RunError(f"{self.path} trained a {model['class']}: give it, {give}")
                module = self._made(described(self.path / "run.toml", self.manifest))
            self._task = self.wrapped(Task(module, self._kind()))
        return self._task

    def _made(self, resolved: Mapping[str, Any]) -> nn.Module:
        """The module of a model by name; one with a frozen part is compared with that of the run."""
        model = self._known("model", MODELS)
        if isinstance(model, LoRA) and isinstance(self._backbone, str | Path):
            model = replace(model, path=str(self._backbone))
        try:
            shape, constants = read_shape(resolved["input_shape"]), self.constants

            def build() -> nn.Module:
                return initialize(model, shape, resolved["outputs"], int(self.manifest["seed"]), constants)

            if not isinstance(model, LoRA):  # which is as large as a file of the user's
                check_size(self.folder, build)
            made = build()
            if isinstance(model, LoRA):
                check_fits(made, self.folder, self.manifest)
        except PersonaflError as error:
            if isinstance(model, LoRA):
                raise RunError(
                    f"{self.path}: {error}; load_run(…, backbone=…), --backbone PATH name another"
                ) from error
            raise
        return made

    def wrapped(self, task: Task) -> Task:
        """A task with the user's module as the run's algorithm trains it, where the algorithm is known here."""
        known = self._algorithm is not None or self.manifest.get("algorithm", {}).get("name") in ALGORITHMS
        return trained_task(self.algorithm, task) if known else task

    def _kind(self) -> LearningTask:
        """The task as run.toml has it; of a loss of somebody's own only the name is known."""
        resolved = self.manifest["resolved"]
        loss = resolved["loss"]
        if of_own := "task" not in resolved or resolved["task"].get("name") == "own":
            if loss not in LOSSES:
                return OwnTask(own_loss=_unknown_loss)
            found: LearningTask = LOSSES[loss]()
        else:
            found = choose_known("task", resolved["task"], TASKS)
        if found.has_classes and resolved.get("classes") is None:
            raise RunError(f"{self.path / 'run.toml'} is damaged: it lacks resolved.classes")
        return found.with_own(_unknown_loss) if loss == "custom" and not of_own else found

    def _models(self, name: str) -> Any:
        path = self.folder.models / f"{name}.safetensors"
        if not path.exists() and name == "personal" and self.complete:
            raise RunError(f"the personalized models of {self.path} are at the sites: models/{path.name} of each")
        if not path.exists():
            raise RunError(f"{self.path} has no models yet: {NOT_FINISHED}")
        self.folder.check_intact(f"models/{path.name}")
        return open_tensors(path)


def load_run(
    path: str | Path,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    backbone: nn.Module | str | Path | None = None,
) -> Run:
    """Open a run folder. Nothing in it is executed.

    Parameters
    ----------
    path
        The run folder.
    module, algorithm
        What a run had that is not one of personafl's own. A module's parameters are compared with those of the run.
    backbone
        The frozen backbone of a run on features, or the path of its weights; of a run of model lora, the path of its
        folder. Compared with the run's by its hash. Left out, it is looked for where it was.
    """
    if (Path(path) / "fit.json").is_file():
        raise RunError(f"{path} is the folder of a fit, not of one run (in Python, load_fit opens it)")
    run = Run(path, module, algorithm, backbone=backbone)
    if backbone is not None:  # checked now, not when a model is asked for
        _ = run.task if run.manifest.get("model", {}).get("name") == LoRA.name else run.backbone
    if module is not None:
        check_fits(run.task.template, run.folder, run.manifest)
    return run


load = load_run
"""As it was called in earlier versions."""


def _unknown_loss(outputs: Tensor, y: Tensor) -> Tensor:
    raise RunError("the run was trained with a loss of its own: personalize with the run that train returned")
