"""The jobs that are timed: their data, their models, and the least arithmetic and memory traffic that they need."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.data.partitions import PowerLaw
from personafl.data.readers import VARIABLE
from personafl.data.sources.mnist import MNIST
from personafl.errors import PersonaflError
from personafl.federation import Federation
from personafl.inputs import one_tensor
from personafl.kernels.task import Task
from personafl.models import CNN, MCLR, MLP, LSTMModel, Model, initialize
from personafl.settings import Local
from personafl.streams import generator
from personafl_bench.peers import networks


@dataclass(frozen=True)
class Job:
    """A round to be timed: `active` of `clients`, each `steps` steps of SGD on `batch` samples."""

    key: str
    name: str
    about: str
    kind: Literal["mlp", "cnn", "lstm", "sensors", "resnet", "transformer", "gru", "lora"]
    shape: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...]
    clients: int
    active: int
    steps: int
    batch: int
    lr: float
    what: Literal["round", "personalized", "evaluation"] = "round"

    @property
    def local(self) -> Local:
        return Local(lr=self.lr, batch_size=self.batch, steps=self.steps)

    @property
    def text(self) -> bool:
        """Whether samples are words."""
        return self.kind in ("transformer", "lora")

    @property
    def least(self) -> tuple[float, float]:
        """Floating-point operations of the matrix products, and bytes, that no way of computing the job can do without.

        Bytes: every active client's weights are read and written once, and every sample that is used is read once.
        Forward and backward pass take three products of a layer's size, but two where inputs need no gradient.
        """
        layers, size = self._products(), self._parameters()
        sample = 4 * math.prod(self.shape)
        if self.what == "evaluation":
            federation = self.federation()
            samples = int(federation.sizes("test").sum())
            return 2.0 * samples * sum(m for m, _ in layers), 4.0 * self.clients * size + samples * sample
        samples = self.active * self.steps * self.batch
        return samples * 2.0 * sum(m * (3 if deep else 2) for m, deep in layers), (
            8.0 * self.active * size + samples * sample
        )

    def federation(self) -> Federation:
        """The clients' data, a multiple of `batch` training samples each: then all libraries' batches are alike."""
        return _federation(replace(self, key="", name="", about="", what="round"))  # jobs b, e and f share theirs

    def task(self) -> Task:
        if self.kind in networks.NETWORKS:
            return Task(networks.build(self.kind, self.shape, self.outputs))
        return Task(initialize(self._model(), self.shape, self.outputs, 0))

    def save(self, folder: Path, threads: int) -> None:
        """Write the job for contestants, which may be programs that know nothing of personafl."""
        federation, task = self.federation(), self.task()
        arrays: dict[str, NDArray[Any]] = {
            "x": one_tensor(federation.x).numpy(),
            "y": federation.y.numpy(),
            "train": federation.bounds[:, :2],
            "theta0": task.theta0.numpy(),
        }
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        settings = {**asdict(self), "threads": threads, "model": self._described()}
        (folder / "job.json").write_text(json.dumps(settings))

    def _described(self) -> dict[str, Any]:
        if self.kind in networks.NETWORKS:
            return {"kind": self.kind, "shape": self.shape, "outputs": self.outputs}
        if self.kind == "cnn":
            return {"kind": "cnn", "channels": self.shape[0], "side": self.shape[1], "outputs": self.outputs}
        if self.kind == "lstm":
            sizes = {"features": self.shape[-1], "hidden": self.hidden[0], "layers": len(self.hidden)}
            return {"kind": "lstm", **sizes, "outputs": self.outputs}
        return {"kind": "mlp", "widths": [*self.shape, *self.hidden, self.outputs]}

    def _model(self) -> Model:
        if self.kind == "cnn":
            return CNN()
        if self.kind == "lstm":
            return LSTMModel(hidden=self.hidden[0], layers=len(self.hidden))
        return MLP(self.hidden) if self.hidden else MCLR()

    def _parameters(self) -> int:
        return self.task().size

    def _products(self) -> list[tuple[int, bool]]:
        """Multiplications and additions of each matrix product for one sample; whether its inputs need a gradient."""
        if self.kind in networks.NETWORKS:  # frozen weights need none, so there are two products of a layer's size
            size = self.task().work_size(torch.zeros(1, *self.shape, dtype=torch.int64 if self.text else torch.float32))
            return [(size.products, self.kind != "lora")]
        if self.kind == "cnn":
            channels, side = self.shape[0], self.shape[1]
            first, second = side - 4, (side - 4) // 2 - 4
            widths: tuple[int, ...] = (16 * (second // 2) ** 2, 120, 84, self.outputs)
            convolutions = [(6 * first**2 * 25 * channels, False), (16 * second**2 * 25 * 6, True)]
            return convolutions + [(a * b, True) for a, b in pairwise(widths)]
        if self.kind == "lstm":
            out: list[tuple[int, bool]] = [(self.hidden[-1] * self.outputs, True)]
            for i, width in enumerate(self.hidden):
                before = self.hidden[i - 1] if i else self.shape[1]
                out += [(self.shape[0] * 4 * width * before, i > 0), (self.shape[0] * 4 * width * width, True)]
            return out
        widths = (*self.shape, *self.hidden, self.outputs)
        return [(a * b, i > 0) for i, (a, b) in enumerate(pairwise(widths))]


SMALL = Job("a", "small", "100 clients × 10 steps, MLP 60-20-10", "mlp", (60,), 10, (20,), 100, 100, 10, 10, 0.03)
MNIST_JOB = Job(
    "b", "mnist", "1,000 clients, 100 active × 20 steps, logistic regression 784-10",
    "mlp", (784,), 10, (), 1000, 100, 20, 10, 0.03,
)  # fmt: skip
CNN_JOB = Job(
    "c", "cnn", "100 clients, 20 active × 20 steps, CNN with 62,006 parameters on 3×32×32",
    "cnn", (3, 32, 32), 10, (), 100, 20, 20, 10, 0.03,
)  # fmt: skip
LSTM = Job(
    "d", "lstm", "100 clients, 10 active × 5 steps, LSTM 2×256 on 25 words of 100 features",
    "lstm", (25, 100), 2, (256, 256), 100, 10, 5, 10, 0.1,
)  # fmt: skip
PERSONALIZED = Job(
    "e", "personalized", "job b with personalized algorithms, at equal numbers of steps",
    "mlp", (784,), 10, (), 1000, 100, 20, 10, 0.03, "personalized",
)  # fmt: skip
EVALUATION = Job(
    "f", "evaluation", "1,000 personal models of job b, each on its client's own test samples",
    "mlp", (784,), 10, (), 1000, 100, 20, 10, 0.03, "evaluation",
)  # fmt: skip
SENSORS = Job(
    "g", "sensors", "30 clients × 4 steps, 1-D CNN with GroupNorm, 117,822 parameters, on 9 sensors × 128",
    "sensors", (9, 128), 6, (), 30, 30, 4, 20, 0.05,
)  # fmt: skip
RESNET = Job(
    "h", "resnet", "50 clients, 10 active × 2 steps, ResNet-8 with GroupNorm on 3×32×32",
    "resnet", (3, 32, 32), 10, (), 50, 10, 2, 10, 0.05,
)  # fmt: skip
TRANSFORMER = Job(
    "i", "transformer", "100 clients, 20 active × 5 steps, transformer with 2 layers of 32 on 20 words",
    "transformer", (20,), 10, (), 100, 20, 5, 10, 0.1,
)  # fmt: skip
GRU_JOB = Job(
    "j", "gru", "100 clients, 20 active × 5 steps, GRU of 32 units on 30 steps of 9 features",
    "gru", (30, 9), 10, (), 100, 20, 5, 10, 0.1,
)  # fmt: skip
LORA = Job(
    "k", "lora", "100 clients, 20 active × 5 steps, LoRA of rank 4 on a frozen transformer with 2 layers of 64",
    "lora", (20,), 10, (), 100, 20, 5, 10, 0.1,
)  # fmt: skip
JOBS = {
    job.key: job
    for job in (
        SMALL, MNIST_JOB, CNN_JOB, LSTM, PERSONALIZED, EVALUATION, SENSORS, RESNET, TRANSFORMER, GRU_JOB, LORA,
    )
}  # fmt: skip


@cache
def _federation(job: Job) -> Federation:
    if job.clients == MNIST_JOB.clients and VARIABLE in os.environ:
        try:
            return _real(job)
        except PersonaflError:
            pass  # no MNIST there: samples of the same shape do
    return _made_up(job)


def _real(job: Job) -> Federation:
    pool = MNIST().load(0)
    parts = PowerLaw(job.clients)(pool.y, generator(0, "bench partition")).parts
    sizes = np.array([len(part) for part in parts])
    train = np.maximum(sizes * 9 // 10 // job.batch, 1) * job.batch
    rows = np.concatenate(parts)
    x = torch.from_numpy(np.asarray(pool.x).reshape(len(pool.x), -1)[rows].astype(np.float32, copy=False))
    return _join(job, x, torch.from_numpy(pool.y[rows].astype(np.int64, copy=False)), train, sizes - train, "MNIST")


def _made_up(job: Job) -> Federation:
    """Classes around centres of their own, so that there is something to learn."""
    draw = generator(0, f"bench {job.kind} {job.shape}")
    if job.clients == job.active or job.kind != "mlp":
        train = np.full(job.clients, 5 * job.batch)
    else:  # lognormal, as in FedProx's split of MNIST
        share = draw.lognormal(0.0, 2.0, job.clients)
        sizes = np.minimum(10 + (59 * job.clients * share / share.sum()).astype(np.int64), 5000)
        train = np.maximum(sizes * 9 // 10 // job.batch, 1) * job.batch
    test = np.maximum(train // 9, 1)
    many = int((train + test).sum())
    y = draw.integers(0, job.outputs, many)
    if job.text:  # half of the words are of the class's own
        tops = networks.WORDS // job.outputs, networks.WORDS
        own, common = (draw.integers(0, top, (many, *job.shape)) for top in tops)
        x = np.where(draw.random((many, *job.shape)) < 0.5, own * job.outputs + y[:, None], common)
        return _join(job, torch.from_numpy(x), torch.from_numpy(y), train, test, "made up")
    centres = draw.standard_normal((job.outputs, *job.shape), np.float32)
    x = draw.standard_normal((many, *job.shape), np.float32)
    x += (0.3 if job.kind == "mlp" else 1.0) * centres[y]
    return _join(job, torch.from_numpy(x), torch.from_numpy(y), train, test, "made up")


def _join(
    job: Job, x: torch.Tensor, y: torch.Tensor, train: NDArray[np.int64], test: NDArray[np.int64], name: str
) -> Federation:
    end = np.cumsum(train + test)
    bounds = np.stack([end - train - test, end - test, end - test, end], 1)
    return Federation(x, y, bounds, tuple(f"{k}" for k in range(job.clients)), classes=job.outputs, name=name)
