"""What the models of a finished run say about every test sample: the source of F1, calibration and DET curves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from personafl.engines.base import Engine
from personafl.task import cross_entropy

MOST = 2_000_000
"""Test samples up to which predictions are kept; about 20 bytes each."""


def prediction_table(engine: Engine, personal: Tensor, common: Tensor | None) -> pa.Table | None:
    """A row for each test sample: whose it is, its class, and what the personalized and the global model say.

    `personal_class` is the most probable class and `personal_confidence` its probability; where there are two classes,
    `personal_score` is the log-odds of class 1. The `global_*` columns are null for an algorithm without a global
    model. None for anything but classification of single labels, and above `MOST` samples.
    """
    federation = engine.federation
    sizes = federation.sizes("test")
    if engine.task.objective is not cross_entropy or federation.y.dim() != 1 or not 0 < sizes.sum() <= MOST:
        return None
    everybody = np.arange(len(federation))
    index = np.arange(sizes.sum()) + np.repeat(federation.starts("test") - (np.cumsum(sizes) - sizes), sizes)
    clients = pa.DictionaryArray.from_arrays(np.repeat(everybody, sizes).astype(np.int32), list(federation.ids))
    columns = {"client": clients, "label": pa.array(federation.y[torch.from_numpy(index)].numpy().astype(np.int32))}
    columns |= _columns("personal", engine.outputs(personal, everybody, "test"))
    if common is None:
        absent = {name.replace("personal", "global"): c.type for name, c in columns.items() if "personal" in name}
        columns |= {name: pa.nulls(len(index), kind) for name, kind in absent.items()}
    else:
        columns |= _columns("global", engine.outputs(common, everybody, "test"))
    return pa.table(columns)


def _columns(who: str, outputs: Tensor) -> dict[str, pa.Array]:
    confidence, most_probable = torch.softmax(outputs.float(), -1).max(-1)
    columns = {
        f"{who}_class": pa.array(most_probable.numpy().astype(np.int32)),
        f"{who}_confidence": pa.array(confidence.numpy()),
    }
    if outputs.shape[-1] == 2:
        columns[f"{who}_score"] = pa.array((outputs[:, 1] - outputs[:, 0]).float().numpy())
    return columns
