"""A federation whose samples went through a frozen backbone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import Array, Stored
from personafl.federation.folders import map_array
from personafl.inputs import dtype_of, shape_of
from personafl.pretrained.backbone import Backbone, Raw
from personafl.pretrained.features import Pass

Fed = TypeVar("Fed", bound=Stored)


def through(fed: Fed, given: nn.Module, batch_size: int, device: str, progress: bool, cache: bool = True) -> Fed:
    """A federation with the features of a backbone as its x; see `Federation.through`."""
    changed: Any = fed
    if changed.raw is not None:
        known = changed.raw.backbone.name
        raise ConfigError(f"the federation's samples are features of backbone {known} already: give it raw samples")
    if batch_size < 1:
        raise ConfigError(f"batch_size = {batch_size}: must be at least 1")
    backbone = given if isinstance(given, Backbone) else Backbone(given)
    raw = Raw(backbone, shape_of(fed.x), dtype_of(fed.x), fed.fingerprint, dict(fed.constants))

    all_samples = Pass(fed.x, backbone, batch_size, device, progress, partial(_check_finite, fed, backbone))
    found = all_samples.kept() if cache else None
    x = all_samples.computed() if found is None else map_array(found)
    made: Fed = replace(changed, x=torch.from_numpy(x), constants={}, raw=raw, scanned=True)
    return made


def features_alone(fed: Fed) -> Fed:
    """The same features without what they were made of; a note says what it was."""
    changed: Any = fed
    known = changed.raw.backbone
    note = f"samples are features of the backbone {known.name} (SHA-256 {known.sha256}), and models take such features"
    alone: Fed = replace(changed, raw=None, notes=(*fed.notes, note), scanned=True)
    return alone


def _check_finite(fed: Stored, backbone: Backbone, places: Array, rows: Array) -> None:
    """NaN is an error that says whose sample it is."""
    wrong = places[~np.isfinite(rows.reshape(len(rows), -1)).all(1)]
    if wrong.size:
        client = fed.ids[int(np.searchsorted(fed.bounds[:, 3], wrong.min(), side="right"))]
        raise DataError(f"backbone {backbone.name} gives NaN or infinite features for a sample of client {client!r}")
