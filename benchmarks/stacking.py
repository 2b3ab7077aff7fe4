"""Networks of all kinds on the stacked engine and in the loop: the ratio of their times, and what `auto` takes.

    OMP_NUM_THREADS=1 python benchmarks/stacking.py [--threads 1 2] [--repeat 5] [--models gru lstm]
    OMP_NUM_THREADS=1 python benchmarks/stacking.py --matrix   # the small networks and tasks of tests/modules

A round is 10 clients with 5 steps of 20 samples. The two engines take turns, and the fastest turn of each counts:
processor seconds, because the machine may have other things to do; with several threads, seconds on the clock.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from personafl import Federation
from personafl.algorithms.base import Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines import Work, make_engine
from personafl.engines.machine import torch_threads
from personafl.jobs import module_task
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local

CLIENTS, STEPS, BATCH, CLASSES = 10, 5, 20, 6


class SensorCNN(nn.Sequential):
    """Windows of sensor data with batch normalization, 120,000 parameters."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs, kernel in ((9, 64, 7), (64, 96, 5), (96, 128, 5)):
            layers += [nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm1d(outputs), nn.ReLU()]
            layers += [nn.MaxPool1d(2)]
        super().__init__(
            *layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(512, 40), nn.ReLU(), nn.Linear(40, 6)
        )


class Block(nn.Module):
    """Of a residual network (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 or inputs != outputs else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, width: int, blocks: int, stages: int) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        layers, inputs = [], width
        for stage in range(stages):
            for block in range(blocks):
                outputs = width * 2**stage
                layers.append(Block(inputs, outputs, 2 if stage and block == 0 else 1))
                inputs = outputs
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


class Transformer(nn.Module):
    """Two layers with their usual dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, width), nn.Parameter(torch.zeros(1, 20, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.tokens(x) + self.positions).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        self.layers, self.head = kind(9, hidden, batch_first=True), nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


class Tabular(nn.Module):
    """Categories as embeddings beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(10, 4) for _ in range(6)])
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([table(x[:, i]) for i, table in enumerate(self.embeddings)], 1))


class ConvNeXt(nn.Module):
    """A depthwise convolution and a scale outside of any layer."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, width, 4, 4), nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma, self.head = nn.Parameter(0.1 * torch.ones(width)), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        out = self.gamma * self.down(F.gelu(self.up(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return self.head((x + out.permute(0, 3, 1, 2)).mean((2, 3)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int | None]] = {
    # the network, the shape of a sample, and of how many words it is where it is text
    "sensor-cnn": (SensorCNN, (9, 128), None),
    "resnet8": (lambda: ResNet(16, 1, 3), (3, 32, 32), None),
    "resnet18": (lambda: ResNet(16, 2, 4), (3, 16, 16), None),
    "convnext": (ConvNeXt, (3, 32, 32), None),
    "transformer": (Transformer, (20,), 100),
    "gru": (lambda: Recurrent(nn.GRU, 32), (30, 9), None),
    "lstm": (lambda: Recurrent(nn.LSTM, 32), (30, 9), None),
    "lstm-256": (lambda: Recurrent(nn.LSTM, 256), (30, 9), None),
    "tabular": (Tabular, (6,), 10),
}


def federation(shape: tuple[int, ...], words: int | None) -> Federation:
    rng = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = (
            rng.normal(size=(count, *shape)).astype(np.float32)
            if words is None
            else rng.integers(0, words, (count, *shape))
        )
        return x, rng.integers(0, CLASSES, count)

    data = {f"c{k:03d}": {"train": split(60), "val": split(4), "test": split(4)} for k in range(CLIENTS)}
    return Federation.from_clients(data, classes=CLASSES)


def from_list(name: str) -> tuple[Task, Federation]:
    build, shape, words = MODELS[name]
    torch.manual_seed(0)
    return Task(build()), federation(shape, words)


def from_tests(name: str) -> tuple[Task, Federation]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.modules.cases import CASES

    case, draws = CASES[name], np.random.default_rng(0)
    torch.manual_seed(0)
    data = Federation.from_clients({f"c{k}": case.samples(draws, 80) for k in range(CLIENTS)}, splits=(0.8, 0.1, 0.1))
    return module_task(data, case.network(), case.task, None, None), data


MATRIX = (
    "resnet18", "resnet18-frozen", "mobilenetv2", "convnext", "vit", "transformer", "bert", "gru", "lstm-tagger",
    "unet", "character-lm", "sensor-cnn", "tabular", "multilabel", "regression", "cox",
)  # fmt: skip


def measure(name: str, task: Task, data: Federation, threads: int, repeat: int) -> str:
    local = Local(lr=0.05, steps=STEPS, batch_size=BATCH)
    work = Work(FineTune(STEPS), 1, "train", np.arange(CLIENTS), {}, Sent({"theta": task.theta0}))
    clock = time.process_time if threads == 1 else time.perf_counter
    engines = {
        kind: make_engine(EngineSettings(kind, threads), task, data, local, 0)[0] for kind in ("loop", "stacked")
    }
    times: dict[str, list[float]] = {kind: [] for kind in engines}
    with torch_threads(threads):
        for _ in range(repeat + 1):
            for kind, engine in engines.items():
                begun = clock()
                engine.run(work)
                times[kind].append(clock() - begun)
    loop, stacked = (1e3 * min(times[kind][1:]) for kind in ("loop", "stacked"))
    _, choice = make_engine(EngineSettings("auto", threads), task, data, local, 0, cohort=CLIENTS, rounds=50)
    way = task.way(data.x).way
    return f"| {name} | {task.size:,} | {way} | {loop:.0f} | {stacked:.0f} | {stacked / loop:.2f} | {choice.engine} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--matrix", action="store_true")
    asked = parser.parse_args()
    make = from_tests if asked.matrix else from_list
    for threads in asked.threads:
        print(f"\n{threads} thread{'s' * (threads > 1)}\n")
        print("| model | parameters | way | loop, ms | stacked, ms | ratio | auto takes |\n|-|-|-|-|-|-|-|")
        for name in MATRIX if asked.matrix else asked.models:
            print(measure(name, *make(name), threads, asked.repeat), flush=True)


if __name__ == "__main__":
    main()
