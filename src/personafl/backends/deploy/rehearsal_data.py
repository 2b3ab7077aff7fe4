"""Data for the sites of a rehearsal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from personafl.data import Digits, Dirichlet, build
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.folders import read_client
from personafl.federation.ragged import padded_length
from personafl.federation.splits import natural_order
from personafl.inputs import one_tensor


def deal(sites: Sequence[str], data: Path | None, place: Callable[[str], Path]) -> tuple[Federation, int | None]:
    """Put a `.npz` file into the place of each site; what they hold together, and what all pad their samples to.

    Parameters
    ----------
    sites : sequence of str
        The sites' names.
    data : Path, optional
        A folder of `.npz` files: those named after the sites, or else one after another in natural order. Left out,
        handwritten digits, unevenly dealt.
    place
        The file of a site.
    """
    if data is None:
        digits = build(Digits(), Dirichlet(clients=len(sites), alpha=1.0))
        for name, client in zip(sites, digits.ids, strict=True):
            parts = {split: pair for split, pair in digits.client(client).items() if len(pair[1])}
            arrays: dict[str, Any] = {}
            for split, (x, y) in parts.items():
                arrays |= {f"x_{split}": one_tensor(x).numpy(), f"y_{split}": y.numpy()}
            np.savez(place(name), **arrays)
    else:
        for name, file in zip(sites, _files(sites, data), strict=True):
            shutil.copyfile(file, place(name))
    brought: dict[str, Any] = {name: read_client(place(name))[0] for name in sites}
    length = padded_length([pair for each in brought.values() for pair in _pairs(each)])
    return Federation.from_clients(brought, length=length), length


def _pairs(brought: Any) -> list[Any]:
    return list(brought.values()) if isinstance(brought, dict) else [brought]


def _files(sites: Sequence[str], data: Path) -> list[Path]:
    if not data.is_dir():
        raise DataError(f"{data} is not a folder; give a folder with one .npz file a site")
    named = [data / f"{name}.npz" for name in sites]
    if all(file.is_file() for file in named):
        return named
    files = sorted(data.glob("*.npz"), key=lambda file: natural_order(file.stem))
    if len(files) < len(sites):
        raise DataError(f"{data} holds {len(files)} .npz files, and {len(sites)} sites need one each")
    return files[: len(sites)]
