"""A job, as algorithms may know it before it starts."""

from __future__ import annotations

from personafl.algorithms.base import JobInfo
from personafl.kernels.task import Task
from personafl.settings import Local


def job_info(task: Task, clients: int, local: Local, groups: tuple[str, ...] | None) -> JobInfo:
    """The job of so many clients that train this task."""
    layers = tuple(zip(task.names, task.sizes, strict=True))
    shapes = tuple(tuple(shape) for shape in task.shapes)
    return JobInfo(layers, clients, local, task.classification, groups, task.kinds, shapes, task.objective)
