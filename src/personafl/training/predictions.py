"""What the models of a finished run say about every test sample: the source of F1, calibration and DET curves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from personafl.engines.base import Engine
from personafl.states import Ints
from personafl.training.evaluation import Personal, common_model

MOST = 2_000_000
"""Test samples up to which predictions are kept; about 20 bytes each."""


class Predictions:
    """A row for each test sample of some clients, made of their personalized models as these go by.

    A row says whose it is, its class, and what the personalized and the global model say. `personal_class` is the most
    probable class and `personal_confidence` its probability; where there are two classes, `personal_score` is the
    log-odds of class 1. The `global_*` columns are null for an algorithm without a global model.
    """

    def __init__(self, engine: Engine, ids: Ints, common: Tensor | None) -> None:
        self._engine, self._ids, self._common = engine, ids, common
        self._sizes = engine.federation.sizes("test")
        samples, single = self._sizes[ids].sum(), engine.federation.y.dim() == 1
        self._wanted = engine.task.classification and single and 0 < samples <= MOST
        self._owners: list[Ints] = []
        self._parts: list[pa.Table] = []

    def add(self, part: Personal) -> None:
        """Ask the personalized models of some clients."""
        owners = np.repeat(part.ids, self._sizes[part.ids])
        if self._wanted and len(owners):
            outputs = self._engine.outputs(part.theta, part.ids, "test")
            self._owners.append(owners)
            self._parts.append(pa.table(prediction_columns("personal", outputs)))

    def table(self) -> pa.Table | None:
        """The rows; None for anything but classification of single labels, and above `MOST` samples."""
        if not self._wanted:
            return None
        federation, ids, sizes = self._engine.federation, self._ids, self._sizes[self._ids]
        index = np.arange(sizes.sum()) + np.repeat(federation.starts("test")[ids] - (np.cumsum(sizes) - sizes), sizes)
        names = [federation.ids[i] for i in ids.tolist()]
        clients = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(ids)), sizes).astype(np.int32), names)
        columns = {"client": clients, "label": pa.array(federation.y[torch.from_numpy(index)].numpy().astype(np.int32))}
        order = np.argsort(np.concatenate(self._owners), kind="stable")
        personal = pa.concat_tables(self._parts).take(order).combine_chunks()
        columns |= {name: personal.column(name).chunk(0) for name in personal.column_names}
        if self._common is None:
            absent = {name.replace("personal", "global"): c.type for name, c in columns.items() if "personal" in name}
            columns |= {name: pa.nulls(len(index), kind) for name, kind in absent.items()}
            return pa.table(columns)
        parts = [
            pa.table(prediction_columns("global", self._engine.outputs(theta, few, "test")))
            for few, theta in common_model(self._engine, self._common, ids)
            if self._sizes[few].sum()
        ]
        common = pa.concat_tables(parts).combine_chunks()
        return pa.table(columns | {name: common.column(name).chunk(0) for name in common.column_names})


def prediction_columns(who: str, outputs: Tensor) -> dict[str, pa.Array]:
    """Columns of predictions.parquet for one model's outputs (N, C): the most probable class, and how probable."""
    confidence, most_probable = torch.softmax(outputs.float(), -1).max(-1)
    columns = {
        f"{who}_class": pa.array(most_probable.numpy().astype(np.int32)),
        f"{who}_confidence": pa.array(confidence.numpy()),
    }
    if outputs.shape[-1] == 2:
        columns[f"{who}_score"] = pa.array((outputs[:, 1] - outputs[:, 0]).float().numpy())
    return columns
