"""A run with patience ends like a run that had that many rounds, decided on validation data alone."""

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.federation import Federation
from tests.archetypes import SHORT_GRID

ROUNDS, PATIENCE = 14, 2


MODELS = "models/personal.safetensors"


def federation(shuffle_test: bool = False) -> Federation:
    """Few samples and half of the labels wrong: validation data soon shows no gain."""
    draw = np.random.default_rng(4)
    data = {}
    for client in "abcd":
        x = draw.standard_normal((30, 5)).astype(np.float32)
        y = np.where(draw.random(30) < 0.5, (x[:, 0] > 0).astype(int), draw.integers(0, 2, 30))
        test = np.random.default_rng(9).permutation(y[20:]) if shuffle_test else y[20:]
        data[client] = {"train": (x[:10], y[:10]), "val": (x[10:20], y[10:20]), "test": (x[20:], test)}
    return Federation.from_clients(data)


def run(folder, algorithm=None, rounds=ROUNDS, fed=None, **settings):
    torch.manual_seed(0)
    local = pf.Local(lr=0.05, optimizer="adam", batch_size=5, steps=3, optimizer_state="kept")
    made = algorithm or pf.FedAvg()
    return pf.train(
        fed or federation(), nn.Linear(5, 2), made, rounds=rounds, eval_every=2, local=local, engine="loop", out=folder,
        progress=False, **settings,
    )  # fmt: skip


def where_it_ends(records) -> int:
    """The rule, written again: the first evaluation that is the second in a row to be no better than the best."""
    best, waited = -1.0, 0
    for record in records:
        if "personal_val_accuracy" in record:
            better = record["personal_val_accuracy"] > best
            best, waited = max(best, record["personal_val_accuracy"]), 0 if better else waited + 1
            if waited == PATIENCE:
                return record["round"]
    raise AssertionError("this federation does not stop")


@pytest.mark.parametrize("algorithm", [pf.FedAvg(), pf.PersFL(**SHORT_GRID)], ids=["fedavg", "persfl"])
def test_an_early_end_is_the_end_of_a_shorter_run(tmp_path, algorithm):
    """Models, tables and predictions too; PersFL makes its students after the last round, whichever that is."""
    end = where_it_ends(run(tmp_path / "whole", algorithm).rounds())
    assert 2 < end < ROUNDS
    early = run(tmp_path / "early", algorithm, patience=PATIENCE)
    short = run(tmp_path / "short", algorithm, rounds=end)
    for name in ("models/global.safetensors", "models/personal.safetensors", "clients.parquet", "predictions.parquet"):
        assert (early.path / name).read_bytes() == (short.path / name).read_bytes(), name
    last = early.rounds()[-1]
    why = last.pop("stopped")
    assert last == short.rounds()[-1] and early.rounds()[:-1] == short.rounds()[:-1]
    assert early.complete and early.manifest["rounds"] == ROUNDS and early.manifest["patience"] == PATIENCE
    assert early.manifest["stopped"] == {"round": end, "why": why} and "personal_val_accuracy" in why
    assert "stopped" not in short.manifest


def test_test_data_is_not_looked_at(tmp_path):
    ends = []
    for shuffled in (False, True):
        made = run(tmp_path / str(shuffled), fed=federation(shuffled), patience=PATIENCE)
        ends.append((made.manifest["stopped"], [r["personal_val_accuracy"] for r in made.rounds()[1::2]]))
    assert ends[0] == ends[1]


def test_a_run_that_ended_early_is_not_trained_on_unless_it_is_given_more_patience(tmp_path):
    early = run(tmp_path / "early", patience=PATIENCE)
    model, rounds = (early.path / MODELS).read_bytes(), early.rounds()
    again = run(tmp_path / "early", patience=PATIENCE, resume=True)
    assert again.rounds() == rounds and again.manifest["stopped"] == early.manifest["stopped"]
    assert (again.path / MODELS).read_bytes() == model
    further = run(tmp_path / "early", resume=True)
    assert len(further.rounds()) == ROUNDS and "stopped" not in further.manifest
    whole = run(tmp_path / "whole")
    assert (further.path / MODELS).read_bytes() == (whole.path / MODELS).read_bytes()


def test_a_run_that_is_resumed_ends_where_one_does_that_was_not_interrupted(tmp_path):
    """The evaluations before the interruption count, and clients go on with the optimizer's state that they had."""
    early = run(tmp_path / "early", patience=PATIENCE)
    run(tmp_path / "parts", rounds=early.manifest["stopped"]["round"] - 2, patience=PATIENCE)
    resumed = run(tmp_path / "parts", patience=PATIENCE, resume=True)
    assert resumed.manifest["stopped"] == early.manifest["stopped"] and resumed.rounds() == early.rounds()
    assert (resumed.path / MODELS).read_bytes() == (early.path / MODELS).read_bytes()


def test_a_newcomer_trains_with_the_runs_optimizer(tmp_path):
    made = run(tmp_path / "run", patience=PATIENCE)
    x = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    net, common = made.personalize(x, (x[:, 0] > 0).astype(int)), made.global_model()
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(net.parameters(), common.parameters(), strict=True))
    assert 0.05 < moved <= 0.05 * 3 * 1.01  # a step of Adam is about as long as its rate, in every parameter
