"""Ways to compute a layer for many clients: the table that decides which one `kernels/by_client.py` takes.

    python benchmarks/layers.py [--threads 1 2] [--clients 5 30] [--repeat 5]

Milliseconds of a forward and a backward pass of all clients together, 20 samples each: the fastest of some repeats, of
processor time with one thread, of the clock with several. A network's first layer needs no gradient for its inputs.
`one by one` is torch's own layer, client after client; `taken` is what the stacked model computes. With several threads
each way uses torch's own, and `shared` is what is taken, by threads that have a part of the clients each.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.func import functional_call

from personafl.engines.machine import reuse_memory
from personafl.kernels import by_client
from personafl.kernels.frame import Frame
from personafl.kernels.layers import replace_layers
from personafl.kernels.stacked_model import StackedModel

SAMPLES = 20
FIRST = 9  # up to so many channels a convolution is a network's first layer
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "Linear 64 → 64": (nn.Linear(64, 64), (64,)),
    "Linear 512 → 256": (nn.Linear(512, 256), (512,)),
    "Conv1d 9 → 64, kernel 7, 128 long": (nn.Conv1d(9, 64, 7, padding=3), (9, 128)),
    "Conv1d 64 → 96, kernel 5, 64 long": (nn.Conv1d(64, 96, 5, padding=2), (64, 64)),
    "Conv2d 3 → 16, kernel 3, 32 × 32": (nn.Conv2d(3, 16, 3, padding=1), (3, 32, 32)),
    "Conv2d 3 → 6, kernel 5, 32 × 32": (nn.Conv2d(3, 6, 5), (3, 32, 32)),
    "Conv2d 1 → 32, kernel 5, 28 × 28": (nn.Conv2d(1, 32, 5), (1, 28, 28)),
    "Conv2d 1 → 8, kernel 3, 8 × 8": (nn.Conv2d(1, 8, 3), (1, 8, 8)),
    "Conv1d 3 → 8, kernel 3, 32 long": (nn.Conv1d(3, 8, 3), (3, 32)),
    "Conv2d 16 → 16, kernel 3, 32 × 32": (nn.Conv2d(16, 16, 3, padding=1), (16, 32, 32)),
    "Conv2d 64 → 64, kernel 3, 8 × 8": (nn.Conv2d(64, 64, 3, padding=1), (64, 8, 8)),
    "Conv2d 32, depthwise, 16 × 16": (nn.Conv2d(32, 32, 3, padding=1, groups=32), (32, 16, 16)),
    "GroupNorm 8 of 64, 16 long": (nn.GroupNorm(8, 64), (64, 16)),
    "GroupNorm 8 of 64, 128 long": (nn.GroupNorm(8, 64), (64, 128)),
    "BatchNorm1d 64, 128 long": (nn.BatchNorm1d(64, track_running_stats=False), (64, 128)),
    "LayerNorm 32, 20 long": (nn.LayerNorm(32), (20, 32)),
    "LayerNorm 128, 128 long": (nn.LayerNorm(128), (128, 128)),
    "MaxPool1d 2 of 64, 128 long": (nn.MaxPool1d(2), (64, 128)),
    "MaxPool2d 2 of 16, 32 × 32": (nn.MaxPool2d(2), (16, 32, 32)),
    "attention 32, 4 heads, 20 long": (nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), (20, 32)),
    "GRU 32, 30 long": (nn.GRU(9, 32, batch_first=True), (30, 9)),
}
Pass = Callable[[], object]


def stacked(layer: nn.Module, clients: int, shape: tuple[int, ...]) -> Pass:
    """As the stacked model has it."""
    frame = Frame()
    model = StackedModel(replace_layers(layer, frame), frame)
    params = {name: p.detach().expand(clients, *p.shape).clone().requires_grad_() for name, p in _named(layer)}
    x = _samples(layer, clients * SAMPLES, *shape)
    direction: list[Tensor] = []

    def run() -> object:
        frame.enter(None, torch.ones(clients, SAMPLES), clients, clients * SAMPLES)
        with model._holding(params, clients, SAMPLES):
            return _backward(_first(model.module(x)), [x, *params.values()], direction)

    return run


def one_by_one(layer: nn.Module, clients: int, shape: tuple[int, ...]) -> Pass:
    """Torch's own layer."""
    each = [{name: p.detach().clone().requires_grad_() for name, p in _named(layer)} for _ in range(clients)]
    xs = [_samples(layer, SAMPLES, *shape) for _ in range(clients)]
    direction: list[Tensor] = []

    def run() -> object:
        for params, x in zip(each, xs, strict=True):
            _backward(_first(functional_call(layer, params, (x,))), [x, *params.values()], direction)
        return None

    return run


def written(way: Callable[..., Tensor]) -> Callable[[nn.Module, int, tuple[int, ...]], Pass]:
    """A way to compute convolutions of `by_client`."""

    def made(layer: nn.Module, clients: int, shape: tuple[int, ...]) -> Pass:
        params = [p.detach().expand(clients, *p.shape).clone().requires_grad_() for _, p in _named(layer)]
        x = _samples(layer, clients, SAMPLES, *shape)
        direction: list[Tensor] = []
        return lambda: _backward(way(layer, x, *params), [x, *params], direction)

    return made


def _named(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return list(layer.named_parameters())


def _samples(layer: nn.Module, *shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=not isinstance(layer, nn.Conv1d | nn.Conv2d) or layer.in_channels > FIRST)


def _first(out: object) -> Tensor:
    found = out[0] if isinstance(out, tuple) else out
    assert isinstance(found, Tensor)
    return found


def _backward(out: Tensor, leaves: list[Tensor], direction: list[Tensor]) -> object:
    direction[:] = direction or [torch.randn_like(out)]
    return torch.autograd.grad(out, [leaf for leaf in leaves if leaf.requires_grad], direction[0])


def fastest(run: Pass, repeat: int, clock: Callable[[], float]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(repeat + 1):
        begun = clock()
        run()
        times.append(clock() - begun)
    return 1e3 * min(times[1:])


def shared(layer: nn.Module, clients: int, shape: tuple[int, ...], threads: int) -> Pass:
    """What is taken, by threads that have a part of the clients each."""
    parts = [stacked(layer, len(range(i, clients, threads)), shape) for i in range(threads)]
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    return lambda: list(pool.map(lambda part: part(), parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 30])
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    reuse_memory()
    for threads in asked.threads:
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        print(f"| {threads} thread{'s' * (threads > 1)} | clients | one by one | groups | windows | taken | shared |")
        print("|-|-|-|-|-|-|-|")
        for name, (layer, shape) in LAYERS.items():
            for clients in asked.clients:
                passes: dict[str, Pass | None] = {
                    "one by one": one_by_one(layer, clients, shape),
                    "groups": None,
                    "windows": None,
                    "taken": stacked(layer, clients, shape),
                    "shared": shared(layer, clients, shape, threads) if threads > 1 else None,
                }
                if isinstance(layer, nn.Conv1d | nn.Conv2d):
                    passes["groups"] = written(by_client._grouped)(layer, clients, shape)
                if isinstance(layer, nn.Conv1d):
                    passes["windows"] = written(by_client._windows)(layer, clients, shape)
                found = [None if run is None else fastest(run, asked.repeat, clock) for run in passes.values()]
                print(f"| {name} | {clients} | " + " | ".join("–" if t is None else f"{t:.2f}" for t in found) + " |")


if __name__ == "__main__":
    main()
