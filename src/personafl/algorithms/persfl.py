"""PersFL: each client learns from the best of the global models it has seen, its optimal teacher.

Divi: Unifying distillation with personalization in federated learning. Thesis, Purdue University, 2021.

    stage 1   fedavg; a client keeps as teacher O the received global model of its lowest validation loss
    stage 2   after training, from O:  min (1 − λ) CE(y, student) + λ T² D(teacher ‖ student),
              for every T in `temperatures` and λ in `imitations`; the best validation accuracy wins,
              ties go to the smaller λ, then to the smaller T (with λ = 0 all T are one student)

D is the Kullback-Leibler divergence between the softmax of logits/T (`persfl`), or their cross-entropy (`persfl-gd`).
The two differ by the teacher's entropy, a constant of the student: their gradients are equal, and so are their results
here. The thesis's Algorithm 1 has D(teacher ‖ student), its equations (4.2) and (6.1) print D(student ‖ teacher):
`direction = "reverse"` takes that (`distillation.py`), and then the two are different methods.

Sent: w down, y up, in stage 1 (1/1); stage 2 is local. A client keeps its teacher, that teacher's validation loss and
round. Personalized model: before the last round the teacher, after it the distilled student. Ours: the final global
model is a candidate too; of teachers with the same loss the later one is kept, with `ties = "earlier"` the earlier one,
as by the "<" of Algorithm 1; `teacher="last"` takes it for everybody (the thesis's "FedAvg as teacher"); stage 2 takes
`distill_epochs` passes over the client's data with the local settings; a client that was never active has the current
w, or a student of it; one without validation data has the last model it received and the first values of the grid;
what `local.held_back` keeps of the validation data is neither looked at for the teacher nor for the student;
`report_grid` reports each client's validation accuracy with every point of the grid, after the last round, in columns
`grid_λ_T` of clients.parquet (not a number where it has no validation data). A newcomer chooses its teacher among the
global models of all rounds where the server kept them (`keep_models`), else takes the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Context, Gradient, JobInfo, Program, Sent, Uploads
from personafl.algorithms.distillation import OBJECTIVES, Direction, Divergence
from personafl.algorithms.extras import SideBySide, Welcomes
from personafl.algorithms.fedavg import FedAvg
from personafl.errors import ConfigError
from personafl.registry import later
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class PersFL(Welcomes, FedAvg):
    """FedAvg, then distillation from each client's best global model."""

    temperatures: tuple[float, ...] = (1.0, 5.0, 25.0)
    """T: the temperatures of the distillation that are tried."""
    imitations: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """λ: the shares of the teacher in the student's loss that are tried."""
    distill_epochs: int = 10
    """Passes over the client's data for each of them."""
    teacher: Literal["best", "last"] = "best"
    """The global model of a client's lowest validation loss, or the last."""
    keep_models: bool = False
    """Whether the server keeps the global models of all rounds, for newcomers to choose from."""
    direction: Direction = later("forward")
    """D is that of the teacher to the student, as in Algorithm 1, or the reverse, as in equation (4.2)."""
    ties: Literal["later", "earlier"] = later("later")
    """Which of two global models of the same validation loss is the teacher; Algorithm 1 has the earlier."""
    report_grid: bool = later(False)
    """Whether the validation accuracy with every (λ, T) is reported, as `grid_λ_T` in clients.parquet."""

    about = About(
        name="persfl",
        paper="Divi 2021",
        personalized="the student distilled from the best global model",
        keeps="its teacher",
        newcomer="distils from the best global model that the server kept, else from the last",
    )
    uses_validation: ClassVar[bool] = True
    divergence: ClassVar[Divergence] = "kl"

    def __post_init__(self) -> None:
        share = "one or more values in [0, 1]"
        check("algorithm.imitations", self.imitations, _all(self.imitations, lambda v: 0 <= v <= 1), share)
        check(
            "algorithm.temperatures",
            self.temperatures,
            _all(self.temperatures, lambda v: v > 0),
            "one or more, above 0",
        )
        check("algorithm.distill_epochs", self.distill_epochs, self.distill_epochs >= 0, "at least 0")

    def prepare(self, job: JobInfo) -> Self:
        if not job.classification:
            raise ConfigError(f"{self.name} distils class probabilities: it needs a classification task")
        return self

    def new_client(self, theta0: Tensor, sent: State) -> State:
        scalar = torch.zeros((), device=theta0.device)
        return {"teacher": sent["theta"], "loss": scalar + torch.finfo(torch.float32).max, "round": scalar - 1}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"], **self._choose(own, sent, ctx)}, ctx.steps

    def _choose(self, own: State, sent: State, ctx: Context) -> State:
        """The better of the teacher so far and the global model(s) now at hand, by validation loss."""
        assert ctx.validation is not None
        candidates = sent["history"] if "history" in sent else sent["theta"][None]
        kept = {name: own[name] for name in ("teacher", "loss", "round")}
        newest = ctx.round - 1  # a round begins with the model that the one before it made
        for number, candidate in enumerate(candidates):
            found = ctx.validation(candidate)
            loss, better = found["loss"], self._better(found, kept["loss"])
            round = torch.full_like(loss, float(newest - len(candidates) + 1 + number))
            kept = {
                "teacher": torch.where(better, candidate, kept["teacher"]),
                "loss": torch.where(better, loss, kept["loss"]),
                "round": torch.where(better, round, kept["round"]),
            }
        return kept

    def _better(self, found: State, loss: Tensor) -> Tensor:
        """Whether a model that measures so takes the place of a teacher with this loss."""
        if self.teacher == "last":
            return torch.ones_like(found["loss"], dtype=torch.bool)
        if self.ties == "later":
            return found["loss"] <= loss
        return (found["loss"] < loss) | _nothing_measured(found)

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {name: carry[name] for name in ("teacher", "loss", "round")}, {"theta": carry["theta"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        new = super().aggregate(server, uploads)
        if self.keep_models:
            new["history"] = torch.cat([server.get("history", server["theta"][None]), new["theta"][None]])
        return new

    def welcome(self, server: State, upload: State) -> Sent:
        return Sent({name: server[name] for name in ("theta", "history") if name in server})

    def evaluation_program(self, last: bool) -> Program | None:
        return Distill(self) if last else None

    def personal(self, own: State, sent: State) -> Tensor:
        return own.get("student", own["teacher"])

    def report(self, own: State, sent: State) -> State:
        nothing = torch.full_like(own["round"], torch.nan)
        found = {
            "teacher_round": own["round"],
            "imitation": own.get("imitation", nothing),
            "temperature": own.get("temperature", nothing),
        }
        if not self.report_grid:
            return found
        stage2 = Distill(self)
        scores = own.get("grid", nothing.repeat(stage2.copies))
        return found | {
            f"grid_{lam:g}_{t:g}": scores[stage2.trained.index(stage2.stands_for(lam, t))] for lam, t in stage2.grid
        }


@dataclass(frozen=True)
class PersFLGD(PersFL):
    """PersFL with cross-entropy between teacher and student in place of the KL divergence."""

    about = replace(PersFL.about, name="persfl-gd")
    divergence: ClassVar[Divergence] = "cross-entropy"


@dataclass(frozen=True)
class Distill(SideBySide, Program):
    """Stage 2: one student for each point of the grid, all trained side by side, the best one kept.

    Where λ is 0, the teacher says nothing, whatever T is: one student stands for all of them, that of the smallest T.
    """

    stage1: PersFL

    uses_validation: ClassVar[bool] = True

    @property
    def grid(self) -> list[tuple[float, float]]:
        """(λ, T), the preferred ones first."""
        return [(lam, t) for lam in sorted(self.stage1.imitations) for t in sorted(self.stage1.temperatures)]

    @property
    def trained(self) -> list[tuple[float, float]]:
        """The points that have a student of their own."""
        return [point for point in dict.fromkeys(self.grid) if self.stands_for(*point) == point]

    def stands_for(self, lam: float, t: float) -> tuple[float, float]:
        """The point whose student is that of this one."""
        return (lam, t) if lam else (lam, min(self.stage1.temperatures))

    @property
    def copies(self) -> int:
        return len(self.trained)

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        # Evaluation comes after its round: the model at hand is the one that this round made.
        chosen = self.stage1._choose(own, sent, replace(ctx, round=ctx.round + 1))
        values = torch.tensor(self.trained, device=chosen["loss"].device)[ctx.copy]
        epoch = (ctx.samples + ctx.batch_size - 1) // ctx.batch_size
        carry = {**chosen, "student": chosen["teacher"], "imitation": values[0], "temperature": values[1]}
        return carry, self.stage1.distill_epochs * epoch

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        objective = OBJECTIVES[self.stage1.divergence, self.stage1.direction]
        logits = grad.predict(carry["teacher"])
        weight, temperature = carry["imitation"], carry["temperature"]
        slope = grad(carry["student"], objective=objective, teacher=logits, imitation=weight, temperature=temperature)
        ctx.descend(carry, "student", slope)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        assert ctx.validation is not None
        found = ctx.validation(carry["student"])
        up = {**carry, "score": found["correct"]}
        if self.stage1.report_grid:
            up["grid"] = torch.where(_nothing_measured(found), torch.nan, found["correct"])
        return carry, up

    def pick(self, own: State, up: State) -> State:
        # The small term sends ties to the first: it is less than one sample in a hundred thousand.
        handicap = 1e-6 * torch.arange(self.copies, device=up["score"].device) / self.copies
        best = torch.argmax(up["score"].double() - handicap)
        kept = {
            name: value.index_select(0, best[None])[0] for name, value in up.items() if name not in ("score", "grid")
        }
        return kept | {name: up[name] for name in ("grid",) if name in up}


def _nothing_measured(found: State) -> Tensor:
    """Whether there was no sample: where the loss is 0, the class of the largest output is the right one."""
    return (found["loss"] == 0) & (found["correct"] == 0)


def _all(values: tuple[float, ...], ok: Callable[[float], bool]) -> bool:
    return len(values) > 0 and all(ok(v) for v in values)
