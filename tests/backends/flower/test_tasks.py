"""Tasks at sites: an operator names one, sites build it from the name, and tell what it measures."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from personafl import tasks
from personafl.backends.flower.screening import check_measures
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.kernels.task import Task
from tests.backends.flower import problem
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import flower, loop, same, server_state


def federation(labels: str) -> Federation:
    rng = np.random.default_rng(0)
    data = {}
    for m in range(3):
        n = 20 + 3 * m
        x = rng.normal(size=(n, 4)).astype(np.float32)
        y = {
            "several": (x[:, :3] + 0.4 * m > 0).astype(np.int64),
            "integers": np.clip(np.round(4 * x[:, 0] + 10), 0, None).astype(np.int64),
            "times": np.stack([rng.exponential(3, n), rng.random(n) < 0.7], 1).astype(np.float32),
        }[labels]
        cuts = {"train": slice(0, n - 12), "val": slice(n - 12, n - 6), "test": slice(n - 6, n)}
        data[f"site-{2 * m + 2}"] = {split: (x[part], y[part]) for split, part in cuts.items()}
    return Federation.from_clients(data)


CASES = [
    ("several", {"name": "multilabel", "pos_weight": [2.0, 1.0, 1.0]}, {"classes": 2, "outputs": 3}, "auc"),
    ("integers", {"name": "regression", "loss": "huber"}, {"outputs": 1}, "rmse"),
    ("times", {"name": "cox"}, {"outputs": 2}, "concordance"),
    ("times", {"name": "hazard", "bins": [1.0, 3.0, 6.0]}, {"outputs": 2}, "concordance"),
]


@pytest.mark.parametrize(("labels", "task", "settings", "first"), CASES, ids=lambda v: str(v)[:12])
def test_sites_do_and_tell_what_the_loop_engine_does(tmp_path, monkeypatch, labels, task, settings, first):
    monkeypatch.setattr(problem, "FEDERATION", {**problem.FEDERATION, **settings})
    if "classes" not in settings:
        monkeypatch.delitem(problem.FEDERATION, "classes")
    monkeypatch.setattr(problem, "OPTIONS", (*problem.OPTIONS, "outputs"))
    data = federation(labels)
    more = {"label_type": "numbers"} if labels == "integers" else {}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data, **more))
    ours = flower(tmp_path / "flower", grid, "ditto", rounds=2, task=task)
    reference = loop(tmp_path / "loop", "ditto", data, rounds=2, task=task)
    assert same(server_state(ours), server_state(reference))
    mine, theirs = ours.folder.clients(), reference.folder.clients()
    assert mine.schema == theirs.schema
    for name in (field.name for field in mine.schema if pa.types.is_floating(field.type)):  # told with three digits
        a, b = (np.array(table.column(name).to_pylist(), np.float64) for table in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=6e-3, err_msg=name)
    assert ours.primary.name == first and np.isfinite(ours.score[f"personal_{first}"])
    assert [m.name for m in ours.measures] == [m.name for m in reference.measures]


def test_hazards_of_a_federation_need_their_bins(tmp_path, monkeypatch):
    monkeypatch.setattr(problem, "FEDERATION", {**problem.FEDERATION, "outputs": 2})
    monkeypatch.delitem(problem.FEDERATION, "classes")
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation("times")))
    with pytest.raises(ConfigError, match=r"give task\.bins"):
        flower(tmp_path / "flower", grid, "fedavg", rounds=1, task={"name": "hazard"})


@pytest.mark.parametrize(("column", "value", "said"), [
    ("personal_auc", 1.5, "personal_auc is 1.5, expected 0 to 1"),
    ("personal_auc", np.inf, "expected 0 to 1"),
    ("personal_f1", -0.1, "expected 0 to 1"),
    ("personal_loss", -1.0, "expected 0"),
    ("personal_loss", np.nan, "personal_loss is nan"),
])  # fmt: skip
def test_values_that_a_metric_cannot_have_are_refused(column, value, said):
    task = Task(nn.Linear(3, 2), tasks.Multilabel())
    index = SimpleNamespace(sizes={"test": np.array([5]), "val": np.array([0])}, counted=False)
    good = {f"personal_{name}": torch.tensor([0.5]) for name in ("loss", *task.kind.columns)}
    check_measures(good | {"personal_auc": torch.tensor([np.nan])}, index, 0, task, True)
    with pytest.raises(DataError, match=said):
        check_measures(good | {column: torch.tensor([value])}, index, 0, task, True)


@pytest.mark.parametrize(("value", "ok"), [(2.0, True), (-2.0, False), (np.inf, False), (1e39, False)])
def test_errors_are_at_least_0_and_finite(value, ok):
    task = Task(nn.Linear(3, 1), tasks.Regression())
    index = SimpleNamespace(sizes={"test": np.array([5]), "val": np.array([0])}, counted=False)
    columns = {"personal_rmse": torch.tensor([value], dtype=torch.float64)}
    if ok:
        return check_measures(columns, index, 0, task, True)
    with pytest.raises(DataError, match="personal_rmse"):
        check_measures(columns, index, 0, task, True)
