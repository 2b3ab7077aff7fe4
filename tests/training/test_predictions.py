"""predictions.parquet against the models that made it."""

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.federation import Federation


def federation(classes=3, seed=0, empty=True):
    rng = np.random.default_rng(seed)
    data = {}
    for client, size in {"ann": 5, "bob": 17, "cid": 2, "dan": 9}.items():
        x = rng.normal(size=(2 * size, 4)).astype(np.float32)
        y = rng.integers(0, classes, 2 * size)
        data[client] = {"train": (x[:size], y[:size]), "test": (x[size:], y[size:])}
    if empty:
        del data["cid"]["test"]
    return Federation.from_clients(data, classes=classes)


def trained(fed, engine="stacked", algorithm=None):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, fed.classes))
    return pf.train(fed, module, algorithm or pf.FedAvg(), rounds=2, engine=engine, progress=False)


def test_every_test_sample_has_what_its_owners_model_says_of_it():
    fed = federation()
    run = trained(fed)
    table = run.predictions()
    assert table.column("client").to_pylist() == ["ann"] * 5 + ["bob"] * 17 + ["dan"] * 9
    start = 0
    for client in ("ann", "bob", "dan"):
        x, y = fed.client(client)["test"]
        rows = table.slice(start, len(y))
        start += len(y)
        assert rows.column("label").to_pylist() == y.tolist()
        for who, module in (("personal", run.personal(client)), ("global", run.global_model())):
            confidence, best = module(x).softmax(-1).max(-1)
            assert rows.column(f"{who}_class").to_pylist() == best.tolist()
            np.testing.assert_allclose(rows.column(f"{who}_confidence").to_numpy(), confidence.detach(), rtol=1e-5)


def test_they_count_up_to_the_clients_table_on_both_engines():
    fed = federation(seed=3)
    for engine in ("loop", "stacked"):
        run = trained(fed, engine)
        table, clients = run.predictions(), run.clients()
        for who in ("personal", "global"):
            hits = table.column(f"{who}_class").to_numpy() == table.column("label").to_numpy()
            owner = table.column("client").to_pylist()
            for client, correct in zip(
                clients["client"].to_pylist(), clients[f"{who}_correct"].to_pylist(), strict=True
            ):
                mine = [hit for hit, name in zip(hits, owner, strict=True) if name == client]
                assert sum(mine) == (correct or 0)


def test_two_classes_have_the_log_odds_of_class_1():
    fed = federation(classes=2)
    run = trained(fed)
    outputs = run.personal("bob")(fed.client("bob")["test"][0]).detach()
    table = run.predictions().slice(5, 17)
    odds = torch.log(outputs.softmax(-1)[:, 1] / outputs.softmax(-1)[:, 0])
    np.testing.assert_allclose(table.column("personal_score").to_numpy(), odds, rtol=1e-4, atol=1e-5)


def test_without_a_global_model_its_columns_are_null():
    table = trained(federation(classes=2), algorithm=pf.Separate()).predictions()
    assert {"global_class", "global_confidence", "global_score"} <= set(table.column_names)
    assert table.column("global_class").null_count == len(table) == 31


@pytest.mark.parametrize("case", ["regression", "nobody has test data", "too many"])
def test_there_are_none(case, monkeypatch):
    if case == "too many":
        monkeypatch.setattr("personafl.training.predictions.MOST", 10)
        assert trained(federation()).predictions() is None
        return
    y = np.zeros(6, np.float32) if case == "regression" else np.zeros(6, np.int64)
    fed = Federation.from_clients(
        {"ann": {"train": (np.ones((6, 2)), y)} | ({"test": (np.ones((6, 2)), y)} if case == "regression" else {})}
    )
    assert pf.train(fed, nn.Linear(2, 1), pf.FedAvg(), rounds=1, progress=False).predictions() is None
