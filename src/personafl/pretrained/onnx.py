"""ONNX files as frozen modules, computed by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.plugins import why

_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8,
          "tensor(bool)": np.bool_, "tensor(double)": np.float64}  # fmt: skip


class OnnxModule(nn.Module):
    """The first output of an ONNX file, on the CPU. One input is the only one; several come by their names.

    A sample with one more dimension than the file takes is a row of windows: each goes through, and the vectors are
    a sequence (N, windows, features), for `pooling`.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = Path(file).resolve()
        self.session = _session(self.file)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.session = _session(self.file)

    def extra_repr(self) -> str:
        return self.file.name

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor | tuple[Tensor]:
        inputs = self.session.get_inputs()
        given = dict(zip([each.name for each in inputs], args, strict=False)) | named
        if len(inputs) == 1 and len(given) == 1:
            [x] = given.values()
            given = {inputs[0].name: x}
            if x.ndim == len(inputs[0].shape) + 1:
                each = self._all({inputs[0].name: x.flatten(0, 1)}, inputs)
                return (each.reshape(*x.shape[:2], -1),)
        if lacking := [each.name for each in inputs if each.name not in given]:
            raise ModelError(f"{self.file.name} wants the inputs {', '.join(lacking)}, the data has {', '.join(given)}")
        return self._all(given, inputs)

    def _all(self, given: dict[str, Tensor], inputs: Any) -> Tensor:
        """The output for all rows."""
        arrays: dict[str, Any] = {
            each.name: given[each.name].cpu().numpy().astype(_TYPES[each.type]) for each in inputs
        }
        rows, fixed = len(next(iter(arrays.values()))), inputs[0].shape[0]
        size = fixed if isinstance(fixed, int) else rows
        made = [self._run(arrays, start, size) for start in range(0, rows, max(1, size))]
        return torch.from_numpy(np.concatenate(made)[:rows])

    def _run(self, arrays: dict[str, Any], start: int, size: int) -> Any:
        """Some rows; a file that was made for batches of one size gets the last row again and again at the end."""
        batch = {name: value[start : start + size] for name, value in arrays.items()}
        lacking = size - len(next(iter(batch.values())))
        if lacking > 0:
            batch = {name: np.concatenate([v, np.repeat(v[-1:], lacking, 0)]) for name, v in batch.items()}
        return self.session.run(None, batch)[0]


def _session(file: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(f"{file.name} needs the package onnxruntime: pip install 'personafl[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever a stranger's file makes it raise
        raise ModelError(f"onnxruntime cannot read {file}: {why(error)[:300]}") from error
    if unknown := [each for each in session.get_inputs() if each.type not in _TYPES]:
        raise ModelError(f"{file}: input {unknown[0].name} is a {unknown[0].type}, which no data here is")
    return session
