"""The pass through a frozen backbone: features of all samples, computed once and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.inputs import Inputs, each_input, length, some
from personafl.pretrained.backbone import Backbone
from personafl.storage.cache import appended

Rows = NDArray[Any]

_PROBES = 8  # samples that are computed again to see whether what is kept is still what the backbone gives


def kept_features(
    x: Inputs, backbone: Backbone, fingerprint: str, rows: Callable[[], Iterator[Rows]], batch_size: int, device: str
) -> Path | None:
    """The .npy file in the cache with the features of all samples; None where the cache cannot be written.

    `rows` computes them where they are not there yet.
    """
    probes = np.unique(np.linspace(0, length(x) - 1, _PROBES).astype(np.int64))

    def usable(found: Rows) -> bool:
        """The code of a module has no hash: a forward that was changed is found out by a few samples."""
        again = np.concatenate(list(pieces(some(x, torch.from_numpy(probes)), backbone, batch_size, device)))
        kept = found[probes]
        return kept.shape == again.shape and np.allclose(kept, again, rtol=1e-3, atol=1e-4 * np.abs(again).max())

    settings = {"version": 1, "data": fingerprint, "backbone": backbone.key}
    return appended("features", settings, rows, length(x), usable)


def pieces(x: Inputs, backbone: Backbone, batch_size: int, device: str, progress: bool = False) -> Iterator[Rows]:
    """The features of all samples, batch after batch."""
    home = next((value.device for value in backbone.parameters()), torch.device("cpu"))
    starts = range(0, length(x), batch_size)
    try:
        backbone.to(device)
        for start in _shown(starts, backbone.name) if progress else starts:
            batch = each_input(lambda value: value.to(device), some(x, slice(start, start + batch_size)))
            yield backbone.features(batch).cpu().numpy()
    finally:
        backbone.to(home)


def _shown(starts: range, name: str) -> Iterator[int]:
    """With a progress bar on a terminal; silent where the output is piped."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(starts, f"features of {name}", console=console, disable=not console.is_interactive)
