"""Notices when a forward pass looks at the values of tensors, as `if x.max() > 1` does.

What it decides then would be decided for the rows of all clients together.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default}
NEUTRAL = ("transformers",)
"""Packages that look at values only to leave out a mask that masks nothing."""
_PASSED = ("torch", "personafl")


class ReadsValues(Exception):
    """The forward pass depends on the values of tensors."""


class DispatchMode(TorchDispatchMode):
    """A mode of torch that does not import its compiler, which would take seconds and 70 MB."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class WatchReads(DispatchMode):
    """Raises `ReadsValues` with the file and line of the code that looks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            package, where = caller()
            if package not in NEUTRAL:
                raise ReadsValues(f"data-dependent control flow: {where} looks at the values of a tensor")
        return func(*args, **(kwargs or {}))


def caller() -> tuple[str, str]:
    """The package, file and line of the innermost code that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _PASSED:
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            return name.partition(".")[0], f"{file}, line {frame.f_lineno},"
        frame = frame.f_back  # type: ignore[assignment]
    return "", "the model"
