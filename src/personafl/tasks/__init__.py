"""Tasks by name: what models are trained for, with loss and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from personafl.errors import ConfigError, DataError, PersonaflError
from personafl.registry import Registry, choose
from personafl.tasks.base import LearningTask, Metric, Objective, OwnTask, own_metrics
from personafl.tasks.classes import Classification, NextToken, Segmentation, Tagging
from personafl.tasks.multilabel import Multilabel
from personafl.tasks.regression import Regression
from personafl.tasks.survival import Cox, Hazard

TASKS = Registry(
    "task",
    "personafl.tasks",
    [Classification, Multilabel, Regression, Segmentation, Tagging, NextToken, Cox, Hazard],
    base=LearningTask,
)

__all__ = [
    "TASKS", "Classification", "Cox", "Hazard", "LearningTask", "Metric", "Multilabel", "NextToken", "Objective",
    "OwnTask", "Regression", "Segmentation", "Tagging", "named_task", "task_for", "task_of_labels",
]  # fmt: skip


def named_task(task: str | LearningTask) -> LearningTask:
    """A task by its name, or the task that is given.

    >>> named_task("regression").loss
    'squared'
    """
    if isinstance(task, str):
        made: LearningTask = choose("task", {"name": task}, TASKS, None)
        return made
    if not isinstance(task, LearningTask):
        raise ConfigError(f"task = {task!r}: must be a task such as pf.tasks.Regression(), or the name of one")
    return task


def task_of_labels(y: Tensor) -> LearningTask:
    """What labels are taken for where nothing is said.

    Floats are numbers; whole numbers (N,) are classes; 0 and 1 in several columns are several labels; other whole
    numbers (N, L) are a class for each token, (N, H, W) for each pixel.

    >>> task_of_labels(torch.tensor([[0, 1], [1, 1]])).name, task_of_labels(torch.tensor([0.5])).name
    ('multilabel', 'regression')
    """
    if y.is_floating_point():
        return Regression()
    if y.dim() == 1:
        return Classification()
    if y.dim() == 2 and y.shape[1] > 1:
        several = bool(((y == 0) | (y == 1)).all())
        return Multilabel() if several else Tagging()
    if y.dim() == 3:
        return Segmentation()
    raise DataError(f"nothing is known of whole numbers of shape {tuple(y.shape)} as labels: name a [task]")


def task_for(
    y: Tensor,
    train: Callable[[], Tensor],
    task: str | LearningTask | None = None,
    loss: Any = None,
    metrics: Any = None,
    outputs: Callable[[Tensor], Tensor] | None = None,
) -> LearningTask:
    """The task of a job: the one that is named or that labels stand for, with somebody's own loss and metrics.

    Parameters
    ----------
    y, train
        All labels; those of the training data.
    outputs
        What the model puts out for some samples. Beside a loss of somebody's own, the metrics of the usual task are
        measured where the outputs fit them.
    """
    named = {"cross_entropy": Classification, "mse": Regression}
    if isinstance(loss, str) and loss not in named:
        raise ConfigError(
            f"loss = {loss!r} is unknown: take {', '.join(named)}, a function of outputs and y, or a task"
        )
    if isinstance(loss, str) and task is not None:
        raise ConfigError(f"loss = {loss!r} and a task were given: the task has its loss, leave one of them out")
    chosen = named_task(task) if task is not None else None
    if chosen is None:
        chosen = named[loss]() if isinstance(loss, str) else task_of_labels(y)
    own = None if isinstance(loss, str) else loss
    if own is not None and task is None and outputs is not None and not _fits(chosen, y, outputs):
        return OwnTask(own_loss=own, more=own_metrics(metrics))
    chosen.check_labels(y)
    return chosen.fitted(train).with_own(own, metrics)


def _fits(task: LearningTask, y: Tensor, outputs: Callable[[Tensor], Tensor]) -> bool:
    largest = int(y.argmax()) // max(1, y[0].numel())
    rows = torch.tensor([0, largest])
    try:
        task.check_labels(y)
        task.check_outputs(outputs(rows), y[rows])
    except PersonaflError:
        return False
    except Exception:  # of the model: its own check says what is wrong
        return True
    return True
