"""What the layers that `layers.py` and `by_client.py` put in know of the current call of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from personafl.kernels.statistics import Recorder


class NoRows(Exception):
    """A layer was used on a tensor that has no rows of clients where they belong."""


class Frame:
    """What the replacement layers know of the current call.

    In a pass for K clients at once (`clients` = K), `key` is (K,), `weight` is (K, B), and tensors have K·B rows, those
    of the first client first. Rows are usually along axis 0, but along axis 1 where time comes first: `axes` has what
    was found of each layer when the model was verified.

    `fixed` says that batch normalization goes by the statistics that its buffers are given, and not by the batch.
    """

    def __init__(self) -> None:
        self.axes: dict[str, Any] = {}
        self.precision = "float32"
        # Whether the model draws random numbers other than by nn.Dropout, in training (True) and in use (False).
        self.draws: dict[bool, bool] = {}
        self.maps = False
        """Whether an operation on samples and parameters outside of layers was computed by vmap."""
        self.enter(None, None)

    def enter(
        self, key: Tensor | None, weight: Tensor | None, clients: int | None = None, rows: int = 0,
        fixed: bool = False, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        """Begin a pass through the model, with keys of randomness and weights of samples, see the class."""
        self.key, self.weight, self._calls, self.clients, self.rows = key, weight, 0, clients, rows
        self.fixed, self.recorder, self._operations = fixed, recorder, 0

    def randomness(self, training: bool) -> Literal["error", "different"]:
        """What vmap is to do about draws: clients differ, where `randomness.py` takes care of them."""
        return "error" if self.draws.get(training) is False else "different"

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around a pass through the model."""
        return nullcontext() if self.precision == "float32" else torch.autocast(device.type, torch.bfloat16)

    def next_call(self) -> int:
        """The number of the next draw of random numbers in this pass, from 1."""
        self._calls += 1
        return self._calls

    def axis(self, layer: nn.Module, x: Tensor) -> int | None:
        """Along which axis of its input a layer sees the rows of K clients; None where it sees something else."""
        path: str = layer.path  # type: ignore[assignment]
        if path not in self.axes:
            self.axes[path] = self.rows_of(x)
        axis: int | None = self.axes[path]
        return axis

    def axes_of(self, operation: str, inputs: Sequence[Any]) -> list[int | None]:
        """The same of all inputs of an operation that is no layer: known by its number in the pass."""
        self._operations += 1
        name = f"{'use' if self.key is None else 'training'} {self._operations} {operation}"
        if name not in self.axes:
            self.axes[name] = [self.rows_of(value) for value in inputs]
        axes: list[int | None] = self.axes[name]
        return axes

    def rows_of(self, value: Any) -> int | None:
        """Which of the first two axes is a multiple of the rows of this pass long; None where neither is."""
        if not isinstance(value, Tensor):
            return None
        return next((axis for axis in range(min(2, value.dim())) if value.shape[axis] % self.rows == 0), None)

    def each_client(self) -> Iterator[int]:
        """Within a pass for K clients, one after another, each as if it were alone: their numbers."""
        assert self.clients is not None and self.weight is not None
        calls, count, key, weight = self._calls, self.clients, self.key, self.weight
        for k in range(count):
            self._calls = calls
            with self.one_client(None if key is None else key[k], weight[k]):
                yield k

    @contextmanager
    def one_client(self, key: Tensor | None, weight: Tensor | None) -> Iterator[None]:
        """Within a pass for K clients, a layer that is computed as for one."""
        outer = self.key, self.weight, self.clients
        self.key, self.weight, self.clients = key, weight, None
        try:
            yield
        finally:
            self.key, self.weight, self.clients = outer
