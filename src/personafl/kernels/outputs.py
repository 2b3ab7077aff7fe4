"""What a module returns, as one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from personafl.errors import ModelError


def logits(returned: Any) -> Tensor:
    """The tensor itself; of several things the predictions: `logits`, "out", or the first of a tuple.

    >>> import torch
    >>> logits({"loss": None, "logits": torch.zeros(2)})
    tensor([0., 0.])
    """
    found = returned
    if isinstance(returned, Mapping):
        found = next((returned[name] for name in ("logits", "out") if name in returned), None)
    elif isinstance(returned, tuple | list):
        found = returned[0] if returned else None
    elif not isinstance(returned, Tensor):
        found = getattr(returned, "logits", None)
    if isinstance(found, Tensor):
        return found
    what = f"a {type(returned).__name__}"
    if isinstance(returned, Mapping):
        what = f"{what} with {', '.join(map(str, returned))}"
    raise ModelError(
        f"the model returns {what}: its forward must return a tensor, a dict with 'logits' or 'out', an object with "
        "logits, or a tuple whose first element is a tensor"
    )
