"""Tasks in whole runs: closed-form fits, measures of either direction, somebody's own loss and metric."""

from __future__ import annotations

import logging
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError, ModelError, RunError
from personafl.jobs import train_config
from personafl.study.judgement import judge

QUIET = {"progress": False, "engine": "loop"}
CLIENTS, SAMPLES = 6, 40


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, a number that they determine up to noise and the client, and who has each sample."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(CLIENTS * SAMPLES, 3)).astype(np.float32)
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.7 * owner + rng.normal(size=len(x)) * 0.5
    return x, y.astype(np.float32), owner


def federation(y: np.ndarray | None = None, **settings: object) -> pf.Federation:
    x, numbers, owner = arrays()
    y = numbers if y is None else y
    clients = {f"c{m}": (x[owner == m], y[owner == m]) for m in range(CLIENTS)}
    return pf.Federation.from_clients(clients, splits=(0.6, 0.2, 0.2), **settings)


def linear(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def fitted(fed: pf.Federation, client: int, task: object, steps: int = 400, lr: float = 0.3, model=None) -> nn.Module:
    """A client alone, all of its data at every step, until it has converged."""
    local = pf.Local(lr=lr, batch_size=0, steps=steps)
    run = pf.train(fed, model or linear(), pf.Separate(), rounds=1, local=local, task=task, **QUIET)
    return run.personal(f"c{client}")


def test_least_squares_is_the_normal_equations():
    fed = federation()
    x, y = fed.client("c2")["train"]
    design = np.c_[x.numpy(), np.ones(len(x))]
    expected = np.linalg.lstsq(design, y.numpy(), rcond=None)[0]
    found = fitted(fed, 2, "regression")
    np.testing.assert_allclose([*found.weight[0].tolist(), found.bias.item()], expected, atol=2e-3)


class Constant(nn.Module):
    """One number for everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(x), 1)


def test_a_constant_with_the_quantile_loss_is_the_quantile():
    fed = federation()
    y = np.sort(fed.client("c1")["train"][1].numpy())
    found = fitted(fed, 1, pf.tasks.Regression(loss="quantile", q=0.8), steps=600, lr=0.02, model=Constant())
    at = np.searchsorted(y, found.value.item()) / len(y)
    assert abs(at - 0.8) <= 1.5 / len(y) + 0.02


def test_cox_finds_the_maximum_of_the_partial_likelihood():
    x, _, _ = arrays()
    rng = np.random.default_rng(3)
    time = rng.exponential(np.exp(-(x @ np.array([0.8, -0.5, 0.0]))))
    y = np.stack([time, rng.random(len(x)) < 0.8], 1).astype(np.float32)
    fed = federation(y)
    torch.manual_seed(0)
    found = fitted(fed, 0, "cox", steps=300, lr=0.5, model=nn.Linear(3, 1, bias=False)).weight[0].detach().double()
    features, labels = (v.double() for v in fed.client("c0")["train"])
    theta = found.clone().requires_grad_()
    order = labels[:, 0].argsort(descending=True)
    risk = (features @ theta)[order]
    likelihood = (labels[order, 1] * (risk - torch.logcumsumexp(risk, 0))).sum() / labels[:, 1].sum()
    assert torch.autograd.grad(likelihood, theta)[0].abs().max() < 2e-3


# --- what a run says --------------------------------------------------------------------------------------------


def test_a_regression_says_rmse_mae_and_r2_and_which_way_they_go(tmp_path, caplog):
    fed = federation()
    with caplog.at_level(logging.INFO, logger="personafl"):
        run = pf.train(fed, linear(), pf.Ditto(), rounds=2, out=tmp_path / "run", **QUIET)
    assert "task regression: loss mse, metrics RMSE (less is better), MAE (less is better)" in caplog.text
    resolved = tomllib.loads((tmp_path / "run" / "run.toml").read_text())["resolved"]
    assert resolved["task"]["name"] == "regression" and list(resolved["metrics"]) == ["rmse", "mae", "r2"]
    assert resolved["metrics"]["rmse"]["better"] == -1 and "classes" not in resolved
    opened = pf.load(tmp_path / "run")
    assert [m.name for m in opened.measures] == ["rmse", "mae", "r2"] and opened.primary.pool == "squares"
    table, errors = run.clients(), []
    for row in table.to_pylist():
        x, y = fed.client(row["client"])["test"]
        with torch.no_grad():
            error = run.personal(row["client"])(x).flatten() - y
        errors.append(error)
        assert row["personal_rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-4)
    everything = torch.cat(errors)
    assert run.score["personal_rmse"] == pytest.approx(everything.square().mean().sqrt().item(), rel=1e-4)
    assert run.score["personal_mae"] == pytest.approx(everything.abs().mean().item(), rel=1e-4)
    assert {"global_rmse", "personal_val_rmse", "global_val_r2"} <= run.score.keys()


def test_a_comparison_by_rmse_ranks_the_lowest_first_and_measures_improvement(tmp_path):
    found = pf.compare(
        federation(), linear(), ["ditto"], seeds=2, rounds=4, local=pf.Local(lr=0.05, steps=5), out=tmp_path, **QUIET
    )
    rows = {row["label"]: row for row in found.table()}
    judgement = found.judgement
    assert judgement.primary == "rmse" and ("lowest RMSE" in found.answer or "RMSE from" in found.answer)
    best = min(rows.values(), key=lambda row: row["rmse"])
    assert best["method"] == found.best
    mine, alone, common = (
        np.concatenate([np.array(found.methods[m][s].clients().column(f"{who}_rmse").to_pylist()) for s in (0, 1)])
        for m, who in (("ditto", "personal"), ("separate", "personal"), ("fedavg", "global"))
    )
    qoi = np.minimum(alone, common) - mine
    assert rows["ditto"]["pui"] == pytest.approx(100 * (qoi > 0).mean())
    assert rows["ditto"]["worst_10"] == pytest.approx(np.mean([mine[:6].max(), mine[6:].max()]))
    for difference in found.significance():
        gap = rows[next(r for r in rows if rows[r]["method"] == difference["method"]
                        and rows[r]["model"] == difference["model"])]["rmse"] - best["rmse"]  # fmt: skip
        assert difference["mean_difference"] == pytest.approx(-gap) and gap >= 0
    text = (tmp_path / "table.csv").read_text()
    assert "ditto,rmse," in text and "ditto,mae," in text and "accuracy" not in text


def test_a_search_takes_the_lowest_validation_rmse():
    found = pf.compare(
        federation(), linear(), ["separate"], seeds=1, rounds=2, search={"local.lr": [0.0001, 0.1]}, **QUIET
    )
    search = found.searches[0]
    assert (search.measure, search.chosen) == ("personal_val_rmse", {"local.lr": 0.1})
    assert "validation rmse" in search.sentence()


def test_whole_numbers_can_be_declared_a_regression():
    y = np.clip(np.round(arrays()[1] * 4) + 40, 0, None).astype(np.int64)
    fed = federation(y)
    run = pf.train(fed, linear(), rounds=1, task="regression", **QUIET)
    assert "personal_rmse" in run.score and "personal_accuracy" not in run.score
    assert fed.classes is not None and "classes" not in run.manifest["resolved"]


def test_several_columns_of_0_and_1_are_labels_and_no_regression():
    x, _, _ = arrays()
    y = (x > 0).astype(np.int64)
    run = pf.train(federation(y), linear(3), rounds=3, local=pf.Local(lr=0.5), **QUIET)
    assert run.manifest["resolved"]["task"]["name"] == "multilabel"
    assert run.primary.name == "auc" and run.score["personal_auc"] > 0.9
    # The same as numbers, where somebody says so.
    run = pf.train(federation(y), linear(3), rounds=1, task="regression", **QUIET)
    assert run.primary.name == "rmse"


def test_clients_without_a_value_are_left_out_and_counted():
    x, _, owner = arrays()
    y = (x[:, :2] > 0).astype(np.int64)
    y[owner < 2] = 1  # no AUC for two clients
    run = pf.train(federation(y), linear(2), rounds=1, **QUIET)
    column = run.clients().column("personal_auc")
    assert column.null_count == 2 and np.isfinite(run.score["personal_auc"])
    assert run.rounds()[-1]["personal_auc_undefined"] == 2 and "personal_auc_undefined" not in run.score


# --- somebody's own ---------------------------------------------------------------------------------------------


def asymmetric(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    error = outputs.flatten() - y
    return torch.where(error > 0, 3 * error, -error)


def within(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((outputs.flatten() - y).abs() < 1).float()


def test_a_loss_and_a_metric_of_ones_own_come_beside_the_tasks():
    fed = federation()
    own = {"within": within, "largest": pf.Metric(name="largest", per="client", better=-1,
                                                  function=lambda o, y: np.abs(o.ravel() - y).max())}  # fmt: skip
    run = pf.train(fed, linear(), rounds=2, loss=asymmetric, metrics=own, **QUIET)
    assert [m.name for m in run.measures] == ["rmse", "mae", "r2", "within", "largest"]
    assert [m.better for m in run.measures][-2:] == [0, -1]
    assert run.manifest["resolved"]["loss"] == "custom"
    row = run.clients().to_pylist()[3]
    x, y = fed.client(row["client"])["test"]
    with torch.no_grad():
        outputs = run.personal(row["client"])(x)
    assert row["personal_loss"] == pytest.approx(asymmetric(outputs, y).mean().item(), rel=1e-4)
    assert row["personal_within"] == pytest.approx(within(outputs, y).mean().item())
    assert row["personal_largest"] == pytest.approx((outputs.flatten() - y).abs().max().item(), rel=1e-5)
    assert {"personal_within", "personal_largest", "personal_rmse"} <= run.score.keys()


def test_a_loss_of_ones_own_on_classes_leaves_the_accuracy():
    y = (arrays()[1] > 2).astype(np.int64)
    smooth = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    run = pf.train(federation(y), linear(2), rounds=1, loss=smooth, **QUIET)
    assert "personal_accuracy" in run.score
    # The same training as the task's own smoothing.
    other = pf.train(federation(y), linear(2), rounds=1, task=pf.tasks.Classification(label_smoothing=0.1), **QUIET)
    for a, b in zip(run.personal("c0").parameters(), other.personal("c0").parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_outputs_that_no_metric_fits_have_the_loss_alone():
    y = (arrays()[1] > 2).astype(np.int64)

    def log_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus((1 - 2 * y) * outputs.flatten())

    run = pf.train(federation(y), linear(1), rounds=1, loss=log_loss, **QUIET)
    assert run.measures == () and run.primary.name == "loss"
    assert set(run.score) == {f"{who}_loss" for who in ("personal", "global", "personal_val", "global_val")}


def test_a_task_with_the_default_settings_trains_bit_for_bit_as_before():
    y = (arrays()[1] > 2).astype(np.int64)
    runs = [pf.train(federation(y), linear(2), rounds=2, **QUIET, **how)
            for how in ({}, {"task": "classification"}, {"loss": "cross_entropy"})]  # fmt: skip
    vectors = [torch.cat([p.flatten() for p in run.personal("c1").parameters()]) for run in runs]
    assert all(torch.equal(vectors[0], vector) for vector in vectors[1:])
    assert all(run.score == runs[0].score for run in runs)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_asked_for(tmp_path):
    fed = federation()
    with pytest.raises(ConfigError, match=r"task = 'regresion' is unknown \(did you mean 'regression'\?\)"):
        pf.train(fed, linear(), task="regresion", **QUIET)
    with pytest.raises(ConfigError, match="must be a task such as"):
        pf.train(fed, linear(), task=3, **QUIET)
    with pytest.raises(ConfigError, match="the task has its loss, leave one of them out"):
        pf.train(fed, linear(), task="regression", loss="mse", **QUIET)
    with pytest.raises(ConfigError, match="the task has a metric 'rmse' already"):
        pf.train(fed, linear(), metrics={"rmse": within}, **QUIET)
    with pytest.raises(ModelError, match="one output for each target"):
        pf.train(fed, linear(4), **QUIET)
    with pytest.raises(ModelError, match=r"within gives values of shape \(2, 1\)"):
        pf.train(fed, linear(), metrics={"within": lambda o, y: o}, **QUIET)
    with pytest.raises(ConfigError, match="classification"):
        pf.train(fed, linear(), pf.PersFL(), **QUIET)
    pf.train(fed, linear(), rounds=1, out=tmp_path / "run", **QUIET)
    with pytest.raises(RunError, match=r"run of another task: its task\.loss is 'squared', now it is 'huber'"):
        pf.train(fed, linear(), rounds=2, out=tmp_path / "run", resume=True, task=pf.tasks.Regression(loss="huber"),
                 **QUIET)  # fmt: skip


def test_a_config_names_the_task(tmp_path):
    values = {"data": {"name": "gaussian", "clients": 4}, "rounds": 2, "engine": "loop",
              "task": {"name": "regression", "loss": "huber", "delta": 0.5, "metrics": ["mae", "rmse"]}}  # fmt: skip
    run = train_config(parse(values), tmp_path / "run")
    assert run.manifest["task"]["loss"] == "huber" and run.primary.name == "mae"
    assert [m.name for m in pf.load(tmp_path / "run").measures] == ["mae", "rmse"]
    assert pf.load(tmp_path / "run").task.kind == pf.tasks.Regression(loss="huber", delta=0.5, metrics=("mae", "rmse"))
    with pytest.raises(ConfigError, match=r"unknown key 'task.los'"):
        parse({**values, "task": {"name": "regression", "los": "huber"}})
    with pytest.raises(ConfigError, match=r"\[task\] has no name"):
        parse({**values, "task": {"loss": "huber"}})


def test_judging_runs_of_two_measures_takes_what_they_share(tmp_path):
    fed = federation()
    one = pf.train(fed, linear(), pf.Ditto(), rounds=1, out=tmp_path / "a", **QUIET)
    other = pf.train(fed, linear(), pf.FedAvg(), rounds=1, out=tmp_path / "b", **QUIET,
                     task=pf.tasks.Regression(metrics=("mae",)))  # fmt: skip
    assert judge({"ditto": {0: one}, "fedavg": {0: other}}).primary == "mae"
