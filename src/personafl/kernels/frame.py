"""What the layers that `layers.py` puts in know of the current call of a model."""

from __future__ import annotations

from torch import Tensor

from personafl.kernels.statistics import Recorder


class Frame:
    """What the replacement layers know of the current call."""

    def __init__(self) -> None:
        self.enter(None, None)

    def enter(
        self, key: Tensor | None, weight: Tensor | None, fixed: bool = False, recorder: Recorder | None = None
    ) -> None:
        """A call begins. `fixed`: batch normalization goes by the statistics that its buffers are given."""
        self.key, self.weight, self.fixed, self.recorder = key, weight, fixed, recorder
        self._calls = 0

    def next_call(self) -> int:
        self._calls += 1
        return self._calls
