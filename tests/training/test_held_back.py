"""Validation data that is held back: algorithms do not see it, and what is compared is measured there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import FedAvg, PersFL
from personafl.engines import ENGINES
from personafl.engines.held_back import held_back
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.jobs import train
from personafl.settings import Local
from personafl.streams import name_key
from personafl.study import demo
from personafl.study.launch import Comparison, run_plan
from personafl.study.plan import plan

HALF = Local(lr=0.2, batch_size=5, steps=4, held_back=0.5)
CLASSES = 4


def keys(count: int) -> np.ndarray:
    return np.array([name_key(f"c{i}") for i in range(count)], np.uint64)


def noise(clients: int, val: int, flipped: dict[str, np.ndarray] | None = None) -> Federation:
    """Labels that nothing can be learnt about; those of some validation samples can be changed."""
    draw, data = np.random.default_rng(1), {}
    for i in range(clients):
        x = draw.standard_normal((12 + val + 4, 6)).astype(np.float32)
        y = draw.integers(0, CLASSES, len(x))
        valid = y[12 : 12 + val].copy()
        if flipped is not None:
            valid[flipped[f"c{i}"]] = (valid[flipped[f"c{i}"]] + 1) % CLASSES
        cut = 12 + val
        data[f"c{i}"] = {"train": (x[:12], y[:12]), "val": (x[12:cut], valid), "test": (x[cut:], y[cut:])}
    return Federation.from_clients(data, classes=CLASSES)


def trained(federation: Federation, algorithm, folder: Path, engine: str = "stacked", local: Local = HALF):
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    return train(
        federation, model, algorithm, rounds=2, local=local, engine=engine, threads=1, out=folder, progress=False
    )


# --- which samples


def test_it_is_a_share_of_each_clients_samples_and_follows_from_seed_and_client():
    sizes = np.array([0, 2, 10, 7, 40])
    held = held_back(keys(5), sizes, 0.5, seed=3)
    parts = np.split(held, np.cumsum(sizes)[:-1])
    assert [int(part.sum()) for part in parts][:3] == [0, 1, 5] and parts[3].sum() in (3, 4) and parts[4].sum() == 20
    alone = held_back(keys(5)[3:4], sizes[3:4], 0.5, seed=3)
    np.testing.assert_array_equal(alone, parts[3])  # whoever else takes part
    assert not np.array_equal(held_back(keys(5), sizes, 0.5, seed=4), held)
    assert 0 < np.flatnonzero(parts[4])[-1] - 20 < 20  # not the first half, nor the last


def test_with_one_sample_each_half_of_the_clients_hold_it_back():
    held = held_back(keys(1000), np.ones(1000, np.int64), 0.5, seed=0)
    assert 440 < held.sum() < 560
    few = held_back(keys(1000), np.ones(1000, np.int64), 0.1, seed=0)
    assert 60 < few.sum() < 140 and not (few & ~held).any()


def held_of(clients: int, val: int, seed: int = 0) -> dict[str, np.ndarray]:
    flat = held_back(keys(clients), np.full(clients, val), 0.5, seed)
    return {f"c{i}": part for i, part in enumerate(flat.reshape(clients, val))}


@pytest.mark.parametrize("engine", ENGINES)
def test_algorithms_do_not_see_it(tmp_path, engine):
    """Other labels there change nothing that PersFL chooses; other labels elsewhere do."""
    chosen = ("teacher_round", "imitation", "temperature", "personal_correct", "personal_loss")
    algorithm = PersFL(temperatures=(1.0, 5.0), imitations=(0.0, 0.5, 1.0), distill_epochs=2)
    held = held_of(6, 5)
    seen = {client: ~part for client, part in held.items()}
    tables = [
        trained(noise(6, 5, flipped), algorithm, tmp_path / str(n), engine).clients().select(chosen).to_pydict()
        for n, flipped in enumerate((None, held, seen))
    ]
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_score_is_that_of_the_personalized_model_on_these_samples(tmp_path, engine):
    run, data, held = trained(noise(5, 7), FedAvg(), tmp_path / "run", engine), noise(5, 7), held_of(5, 7)
    table = run.clients()
    assert table.column("n_held").to_pylist() == [int(held[c].sum()) for c in data.ids]
    for row, client in enumerate(data.ids):
        x, y = (values[torch.from_numpy(held[client])] for values in data.client(client)["val"])
        with torch.no_grad():
            outputs = run.personal(client)(x)
        assert table.column("personal_held_correct")[row].as_py() == int((outputs.argmax(1) == y).sum())
        loss = nn.functional.cross_entropy(outputs, y)
        assert table.column("personal_held_loss")[row].as_py() == pytest.approx(float(loss), rel=1e-5)
    right, n = (sum(table.column(name).to_pylist()) for name in ("personal_held_correct", "n_held"))
    assert run.score["personal_held_accuracy"] == pytest.approx(right / n)


def test_without_it_algorithms_see_everything_and_there_are_no_such_columns(tmp_path):
    run = trained(noise(3, 4), FedAvg(), tmp_path / "run", local=Local(steps=2))
    assert not [name for name in run.clients().column_names if "held" in name]
    assert "held_back" not in run.manifest["local"]


def test_clients_without_any_have_no_score(tmp_path):
    data = noise(4, 1)
    run = trained(data, PersFL(temperatures=(1.0,), distill_epochs=1), tmp_path / "run")
    table = run.clients()
    assert sorted(set(table.column("n_held").to_pylist())) == [0, 1]
    for n, right in zip(*(table.column(c).to_pylist() for c in ("n_held", "personal_held_correct")), strict=True):
        assert (right is None) == (n == 0)


# --- what is compared there


def seen_accuracy(run) -> float:
    """On the validation samples that algorithms choose on."""
    columns = ("personal_val_correct", "personal_held_correct", "n_val", "n_held")
    right, held_right, n, held = (sum(run.clients().column(name).to_pylist()) for name in columns)
    return (right - held_right) / (n - held)


def test_who_chooses_on_noise_is_not_better_on_what_was_held_back(tmp_path, monkeypatch):
    """Fifteen students to choose from on ten samples: far ahead on validation data, and no better than anybody."""
    data = noise(80, 20)
    local = Local(lr=0.2, batch_size=6, steps=4, held_back=0.5)
    algorithms = {"persfl": PersFL(distill_epochs=5), "fedavg": FedAvg(), "separate": FedAvg(weights="equal")}
    methods = {m: {0: trained(data, a, tmp_path / m, local=local)} for m, a in algorithms.items()}
    score = {m: runs[0].score for m, runs in methods.items()}
    error = np.sqrt(2 * 0.25 * 0.75 / 800)
    assert seen_accuracy(methods["persfl"][0]) - seen_accuracy(methods["fedavg"][0]) > 3 * error
    assert abs(score["persfl"]["personal_held_accuracy"] - score["fedavg"]["personal_held_accuracy"]) < 2.5 * error
    monkeypatch.setattr(demo, "METHODS", ("persfl", "fedavg", "separate"))
    found = Comparison(tmp_path, methods, [], [], ())
    best = demo.ranked(found)[0]
    held = {m: s["personal_held_accuracy"] for m, s in score.items()}
    assert held[best] == max(held["persfl"], held["fedavg"])
    assert "held back from every method" in demo.sentence(found) and "is not significant" in demo.sentence(found)


TABLES = {
    "rounds": 2,
    "eval_every": 0,
    "splits": [0.4, 0.3, 0.3],
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.3, "min_samples": 10},
    "model": {"name": "mclr"},
    "local": {"steps": 3, "lr": 0.1},
    "engine": {"name": "stacked", "threads": 1},
    "methods": {"persfl": {"algorithm": {"temperatures": [1.0], "distill_epochs": 1}}, "fedavg": {}, "separate": {}},
}


def test_a_search_scores_who_chooses_on_validation_data_on_the_rest_of_it(tmp_path):
    planned = plan(TABLES, seeds=1, tune=["local.lr=[0.01, 0.3]"])
    found = run_plan(planned, tmp_path)
    measures = {search.method: search.measure for search in found.searches}
    assert measures == {
        "persfl": "personal_held_accuracy", "fedavg": "personal_val_accuracy", "separate": "personal_val_accuracy"
    }  # fmt: skip
    for search in found.searches:
        for trial in search.trials:
            records = [
                json.loads(line) for line in (tmp_path / trial.runs[0] / "rounds.jsonl").read_text().splitlines()
            ]
            assert trial.score == records[-1][search.measure]
    # Test data decides between methods: there everybody chooses on all validation data.
    assert "held_back" not in found.methods["persfl"][0].manifest["local"]
    assert len(list(tmp_path.glob("*-*-*"))) == planned.jobs() == 4 + 2 + 1


def test_a_search_with_too_little_validation_data_says_so(tmp_path):
    tune = ["persfl.distill_epochs=[0, 1]"]
    none = TABLES | {"splits": [0.6, 0.0, 0.4]}
    with pytest.raises(ConfigError, match="validation data and nobody has any"):
        run_plan(plan(none, ["persfl"], seeds=1, tune=tune), tmp_path / "none")
    few = TABLES | {"local": {"steps": 1, "held_back": 1e-9}}
    with pytest.raises(ConfigError, match="has not chosen on itself, and there is too little to divide"):
        run_plan(plan(few, ["persfl"], seeds=1, tune=tune), tmp_path / "few")


def test_a_share_is_above_0_and_below_1():
    for wrong in (0.0, 1.0, -0.5):
        with pytest.raises(ConfigError, match=rf"local.held_back = {wrong}: must be above 0 and below 1"):
            Local(held_back=wrong)


def test_the_demo_names_who_is_ahead_on_what_was_held_back(tmp_path):
    found = run_plan(demo.demo_plan(2, seed=0, seeds=1), tmp_path)
    held = {m: runs[0].score["personal_held_accuracy"] for m, runs in found.methods.items() if m != "separate"}
    best, second = demo.ranked(found)[:2]
    assert held[best] == max(held.values()) and held[second] == sorted(held.values())[-2]
    told = demo.sentence(found)
    assert f"with {best} " in told and f"{best} is named because it is ahead" in told
    assert f"({held[best]:.1%}, then {second} {held[second]:.1%}" in told
    assert {run.manifest["local"]["held_back"] for runs in found.methods.values() for run in runs.values()} == {0.5}
